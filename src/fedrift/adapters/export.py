"""An adapter as files that the library PEFT reads, and the merged model as one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fedrift.adapters.layers import A, B, adapted_layers, is_transposed, weight_of
from fedrift.config.adapters import parse_adapter
from fedrift.core.flat import Vec
from fedrift.core.problem import Problem
from fedrift.errors import InputError

WHATS = ("adapter", "merged")
PREFIX = "base_model.model."


def exported(
    what: str, problem: Problem, w: Vec, moved: Mapping[str, Tensor], adapter: str | None
) -> dict[str, Any]:
    """Files by name: a dict of tensors for safetensors, or what JSON holds."""
    if what not in WHATS:
        raise InputError(f"export: what is '{what}', not {' or '.join(WHATS)}")
    if what == "merged":
        module = problem.module(w, moved)
        return {"model.safetensors": dict(module.state_dict())}
    if adapter is None:
        raise InputError("export: the run had no adapter, so there is only the merged model")
    chosen = parse_adapter(adapter)
    if chosen.kind == "lora" and chosen.how == "exact":
        raise InputError(
            "export: with how=exact the base has moved too, so that the adapter alone is not the "
            "model; export the merged one"
        )
    tensors = problem.layout.named(w)
    if chosen.kind != "lora":
        return {"adapter_model.safetensors": tensors}
    layers = list(adapted_layers(problem.model.module))
    factors = {weight_of(name, part) for name, _ in layers for part in (A, B)}
    frozen = {name: problem.rest[name] for name in factors if name in problem.rest}
    whole = {f"{PREFIX}{name}": value for name, value in {**tensors, **frozen}.items()}
    also = sorted({name.rpartition(".")[0] for name in tensors if name not in factors})
    config = {
        "peft_type": "LORA",
        "r": chosen.rank,
        "lora_alpha": chosen.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": any(is_transposed(layer) for _, layer in layers),
        "target_modules": [name for name, _ in layers],
        "modules_to_save": also or None,
        "inference_mode": True,
        "task_type": None,
        "base_model_name_or_path": None,
    }
    return {"adapter_model.safetensors": whole, "adapter_config.json": config}


def write(folder: Path, files: Mapping[str, Any]) -> Path:
    """Writes each file as a whole."""
    from safetensors.torch import save

    from fedrift.core.plain_files import write_file
    from fedrift.storage.jsonl import dump

    for name, content in files.items():
        if name.endswith(".json"):
            write_file(folder / name, dump(content, indent=1) + "\n")
        else:
            plain = {n: t.detach().cpu().contiguous().clone() for n, t in content.items()}
            write_file(folder / name, save(plain))
    return folder
