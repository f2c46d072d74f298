package io.djltp.conformance;

import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.sequence;

import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.norm.LayerNorm;

import io.djltp.nn.norm.RmsNorm;

import java.util.List;

/** What every rank computes with all features: DJL's linear layer and a norm. */
record SweptPlain(long outputs, int axis, Norm norm) implements SweptPart {

    /** What follows the linear layer. */
    enum Norm {
        TANH,
        LAYER,
        RMS
    }

    static SweptPlain draw(Draws draws, Layout layout, long inputs) {
        return draw(draws, draws.between(4, 7));
    }

    /** Draws a layer of so many units. */
    static SweptPlain draw(Draws draws, long units) {
        return new SweptPlain(units, draws.row(1).dimension(), draws.of(List.of(Norm.values())));
    }

    @Override
    public Block create(boolean cut) {
        SequentialBlock block = sequence(linear(outputs));
        return switch (norm) {
            case TANH -> block.add(Activation.tanhBlock());
            case LAYER -> block.add(LayerNorm.builder().axis(axis).build());
            case RMS -> block.add(RmsNorm.builder().build());
        };
    }
}
