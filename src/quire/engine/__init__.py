"""The inference layer: owns the model's bytes and decides nothing that was not sent as data.

Import what you need from its modules; this package exports nothing, so that the tokenizer and the
model card can be read by a process that has no use for torch:

* ``quire.engine.engine.Engine`` executes batch messages (``quire.core.interfaces.EngineCore``),
* ``quire.engine.tokenizer.load_tokenizer`` and ``quire.engine.model_card.read_model_card`` serve
  the edge, without torch.
"""
