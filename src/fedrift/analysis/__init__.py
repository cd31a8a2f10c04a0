"""The microscope: why an algorithm wins. Flatness, similarity, drift and bias of trained models."""
