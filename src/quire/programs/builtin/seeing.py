"""Computes an image of a prompt: its embeddings, then their K and V."""

from __future__ import annotations

from quire.programs.api import Api, KvPage, Queue
from quire.programs.api.reply import Reply
from quire.programs.builtin.requests import PromptImage


def see_image(api: Api, queue: Queue, pages: list[KvPage], image: PromptImage) -> Reply[None]:
    """Append ``image`` to ``pages``; return the reply to the last command."""
    embeds = api.alloc_emb(queue, image.num_embeds)
    span = list(range(image.start, image.start + image.num_embeds))
    api.embed_img(queue, image.file, embeds, span)
    computed = api.forward(queue, pages, embeds, pages)
    api.dealloc_emb(queue, embeds)
    return computed
