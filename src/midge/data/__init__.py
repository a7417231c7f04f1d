"""Data: manifests of utterances, their preparation, and batches of them."""

from midge.data.loading import Batch, BatchLoader, CanAlign, Skipped, sample_mels
from midge.data.manifests import ManifestError, manifest_entries, read_manifest, write_manifest
from midge.data.plan import PlannedBatch, plan_batches, plan_forever, plan_in_order, shard
from midge.data.utterances import Recording, TarMember, Utterance, WordTime

__all__ = [
    "Batch",
    "BatchLoader",
    "CanAlign",
    "ManifestError",
    "PlannedBatch",
    "Recording",
    "Skipped",
    "TarMember",
    "Utterance",
    "WordTime",
    "manifest_entries",
    "plan_batches",
    "plan_forever",
    "plan_in_order",
    "read_manifest",
    "sample_mels",
    "shard",
    "write_manifest",
]
