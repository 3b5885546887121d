# /// script
# requires-python = ">=3.11"
# dependencies = ["spodgt[peer,transformers]"]
#
# [tool.uv.sources]
# spodgt = { path = "..", editable = true }
# ///
"""The Trainer of `alone_trainer.py` as a site of a run.

    spodgt simulate examples/join_trainer.py --clients 4 -- --shard {number}/{clients}

Only the adapters and the classifier travel.
"""

from __future__ import annotations

import argparse
import tempfile

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from spodgt.integrations.transformers import SpodgtCallback

WORDS, LENGTH, TOPICS = 40, 16, 4
Sample = dict[str, object]


def texts(count: int, topics: list[int], seed: int) -> list[Sample]:
    """Texts of random words; three in four words are from the part of the vocabulary of the topic."""
    generator = torch.Generator().manual_seed(seed)
    size = WORDS // TOPICS
    samples: list[Sample] = []
    for number in range(count):
        topic = topics[number % len(topics)]
        words = torch.randint(WORDS, (LENGTH,), generator=generator)
        own = topic * size + torch.randint(size, (LENGTH,), generator=generator)
        is_own = torch.rand(LENGTH, generator=generator) < 0.75
        samples.append({"input_ids": torch.where(is_own, own, words), "labels": topic})
    return samples


def network() -> nn.Module:
    """The same frozen base at every site, with adapters."""
    torch.manual_seed(0)
    base = BertForSequenceClassification(
        BertConfig(
            vocab_size=WORDS,
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=128,
            max_position_embeddings=LENGTH,
            num_labels=TOPICS,
            initializer_range=0.1,  # a random base whose features differ between words
        )
    )
    adapters = LoraConfig(task_type="SEQ_CLS", r=8, target_modules=["query", "value"])
    return get_peft_model(base, adapters)


def accuracy(prediction: object) -> dict[str, float]:
    logits, labels = prediction
    return {"accuracy": float((logits.argmax(-1) == labels).mean())}


def main(shard: str = "0/1", steps: int = 400) -> None:
    number, shards = map(int, shard.split("/"))
    topics = [topic for topic in range(TOPICS) if topic % shards == number % TOPICS] or [0]
    with tempfile.TemporaryDirectory() as output:
        arguments = TrainingArguments(
            output,
            max_steps=steps,
            per_device_train_batch_size=16,
            learning_rate=5e-3,
            max_grad_norm=0,  # clipping would come before the correction
            eval_strategy="steps",
            eval_steps=max(1, steps // 5),
            logging_steps=10,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = Trainer(
            network(),
            arguments,
            train_dataset=texts(400, topics, seed=1 + number),
            eval_dataset=texts(200, list(range(TOPICS)), seed=0),
            compute_metrics=accuracy,
            callbacks=[
                SpodgtCallback(
                    "peers/lima",
                    block_steps=5,
                    max_silent_blocks=2,
                    max_norm=1.0,
                ),
            ],
        )
        trainer.train()
        score = trainer.evaluate()["eval_accuracy"]
    print(f"test accuracy {score:.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shard", default="0/1", help="NUMBER/COUNT: topics with this remainder")
    parser.add_argument("--steps", type=int, default=400)
    main(**vars(parser.parse_args()))
