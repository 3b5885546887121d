"""Sites inside other training libraries: Hugging Face Trainer, Lightning, Flower.

Each module needs the extra of its name, such as `pip install 'spodgt[peer,transformers]'`.
"""
