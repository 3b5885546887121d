"""Training scripts as sites of a run: `spodgt.join` and what it is made of.

    layout       which tensors of a model travel
    correction   recorded gradients and the corrected step
    hooks        hooks on the user's optimizer
    exchange     blocks, corrections and models between training and network, in the background
    connection   folder, state and links of a site
    checkpoint   optimizer, scheduler and scaler beside the state
    site         the context manager that connects them
    run_setup    a run for scripts: layout of the model, manifest

Needs the extra `peer`.
"""

import os

# Data loaders fork the process of a training script. The fork handlers of gRPC break its
# connections then; gRPC reads this when it is first used.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
