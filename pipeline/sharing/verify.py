"""``distill verify``: is a set what it says it is?"""

from pipeline.errors import IntegrityError
from pipeline.logit_set.reader import find_set, load_set_tokenizer
from pipeline.logit_set.record import SetManifest, read_manifest
from pipeline.logit_set.verify import verify_shards
from pipeline.sharing.config import VerifyConfig


def verify(config: VerifyConfig) -> SetManifest:
    """Checks everything that a set says of itself; its state stays as it is.

    Raises:
        IntegrityError: listing everything that is wrong, or if the set was never finished.
    """
    root = find_set(config.logits, config.store)
    manifest = read_manifest(root)
    if manifest.state != "verified":  # its teacher was not held against gold
        raise IntegrityError(f"{root}: not finished yet; repeat its command to finish it:\n  {manifest.command}")
    load_set_tokenizer(root, manifest.tokenizer)
    verify_shards(root, manifest)
    return manifest
