package io.djltp.training;

import static io.djltp.testing.Blocks.column;
import static io.djltp.testing.Blocks.sequence;

import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.training.initializer.Initializer;
import ai.djl.training.initializer.NormalInitializer;
import ai.djl.training.initializer.XavierInitializer;
import ai.djl.training.tracker.CyclicalTracker;
import ai.djl.training.tracker.CyclicalTracker.CyclicalMode;
import ai.djl.training.tracker.Tracker;

import io.djltp.testing.Blocks;

import java.util.function.Function;

/** A tracker or an initializer that processes set differently. */
enum DifferentOption {
    INITIALIZER(
            "the initializer of weight",
            "ai.djl.training.initializer.NormalInitializer",
            "ai.djl.training.initializer.XavierInitializer",
            x -> with(x.contains("Normal") ? new NormalInitializer() : new XavierInitializer())),
    STEPS("the optimizer.learningRateTracker.steps", "[1, 3]", "[1, 4]", DifferentOption::steps),
    CYCLICAL_MODE(
            "the optimizer.learningRateTracker.scaleFunction",
            "ai.djl.training.tracker.CyclicalTracker$TriangularScaleFunction",
            "ai.djl.training.tracker.CyclicalTracker$Triangular2ScaleFunction",
            DifferentOption::cyclical);

    static final int UNITS = 8;

    /** What is said to differ, and the values of both processes. */
    final String what;

    final Object first;
    final Object second;
    private final Function<Object, ?> maker;

    @SuppressWarnings("unchecked") // both values are of one type
    <T> DifferentOption(String what, T first, T second, Function<T, ?> maker) {
        this.what = what.startsWith("the") ? what : "the network" + what;
        this.first = first;
        this.second = second;
        this.maker = value -> maker.apply((T) value);
    }

    /** Returns the network, loss or tracker of a process. */
    Object of(int process) {
        return maker.apply(process == 0 ? first : second);
    }

    private static Tracker steps(String text) {
        int[] steps = {1, text.endsWith("3]") ? 3 : 4};
        return Tracker.multiFactor().setBaseValue(0.1f).setSteps(steps).build();
    }

    private static Tracker cyclical(String text) {
        boolean plain = text.endsWith("TriangularScaleFunction");
        CyclicalMode mode = plain ? CyclicalMode.TRIANGULAR : CyclicalMode.TRIANGULAR2;
        return CyclicalTracker.builder().optMode(mode).build();
    }

    /** Returns a network to begin with. */
    static SequentialBlock linear() {
        return sequence(Blocks.linear(UNITS));
    }

    private static Block with(Initializer initializer) {
        Block block = column(UNITS);
        block.setInitializer(initializer, Parameter.Type.WEIGHT);
        return block;
    }
}
