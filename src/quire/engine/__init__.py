"""The inference layer: owns the model's weights and memory, and executes messages alone.

Import from its modules. This package exports nothing, so that processes without torch can use the
tokenizer and the model card:

* ``quire.engine.engine.Engine`` executes batch messages (``quire.core.interfaces.EngineCore``),
* ``quire.engine.tokenizer.load_tokenizer`` and ``read_model_card`` of
  ``quire.engine.checkpoint.model_card`` serve the edge, without torch.
"""
