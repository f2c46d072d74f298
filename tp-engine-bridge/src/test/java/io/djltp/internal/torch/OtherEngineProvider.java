package io.djltp.internal.torch;

import ai.djl.engine.Engine;
import ai.djl.engine.EngineProvider;

/** Stands for the provider of an engine that is not PyTorch; not registered in the test JVM. */
public final class OtherEngineProvider implements EngineProvider {

    /** {@inheritDoc} */
    @Override
    public String getEngineName() {
        return "Other";
    }

    /** {@inheritDoc} */
    @Override
    public int getEngineRank() {
        return 1; // before PyTorch, which has 2
    }

    /** {@inheritDoc} */
    @Override
    public Engine getEngine() {
        throw new AssertionError("nobody asked for this engine");
    }
}
