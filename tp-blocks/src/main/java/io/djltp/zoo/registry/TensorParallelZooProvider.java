package io.djltp.zoo.registry;

import ai.djl.repository.zoo.ModelZoo;
import ai.djl.repository.zoo.ZooProvider;

/** Tells DJL of the {@link TensorParallelZoo}. */
public final class TensorParallelZooProvider implements ZooProvider {

    /** Creates a provider. */
    public TensorParallelZooProvider() {}

    /** {@inheritDoc} */
    @Override
    public ModelZoo getModelZoo() {
        return new TensorParallelZoo();
    }
}
