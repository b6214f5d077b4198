"""Policies that take mappings, whose keys are tenants of whatever type."""

from batchlib import batched
from batchlib.policies import FairShare, Priority, TenantQuota

weights: dict[str, float] = {"acme": 3.0}
quotas: dict[int, TenantQuota] = {7: TenantQuota(max_waiting=1000)}


@batched(ordering=Priority(within=FairShare(weights)), admission=TenantQuota(overrides=quotas))
def embed(texts: list[str]) -> list[float]:
    raise NotImplementedError
