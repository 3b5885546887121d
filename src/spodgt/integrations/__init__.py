"""Sites inside other training libraries: Hugging Face Trainer, Lightning, Flower.

    pip install "spodgt[peer,transformers]"
    pip install "spodgt[peer,lightning]"
    pip install "spodgt[peer]" flwr

There is no extra for Flower: it requires older versions of protobuf, rich and typer than a common
list of versions of all extras would have.
"""
