"""x"""
from midge.models.parts import NAMED_MODELS, ModelParts, named_model
