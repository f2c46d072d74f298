package io.djltp.jmh;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.cut.Cut;
import io.djltp.head.LossOptions;
import io.djltp.internal.collective.local.LocalCommunicator;
import io.djltp.internal.head.ChunkedHead;
import io.djltp.internal.head.HeadOptions;
import io.djltp.internal.libtorch.LibTorch;
import io.djltp.internal.update.WeightUpdate;
import io.djltp.torch.NativeAllocator;

import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.BenchmarkMode;
import org.openjdk.jmh.annotations.Fork;
import org.openjdk.jmh.annotations.Measurement;
import org.openjdk.jmh.annotations.Mode;
import org.openjdk.jmh.annotations.OutputTimeUnit;
import org.openjdk.jmh.annotations.Scope;
import org.openjdk.jmh.annotations.Setup;
import org.openjdk.jmh.annotations.State;
import org.openjdk.jmh.annotations.TearDown;
import org.openjdk.jmh.annotations.Warmup;

import java.util.concurrent.TimeUnit;

/** The pieces of a large head, at the size of a few chunks of classes. */
@BenchmarkMode(Mode.AverageTime)
@OutputTimeUnit(TimeUnit.MICROSECONDS)
@State(Scope.Benchmark)
@Fork(1)
@Warmup(iterations = 3, time = 1)
@Measurement(iterations = 5, time = 1)
public class FusedHeadBenchmark {

    private static final int ROWS = 64;
    private static final int FEATURES = 128;
    private static final int CLASSES = 32_768;
    private static final long BUDGET = 64L << 20;

    private NDManager manager;
    private NDArray features;
    private NDArray weight;
    private NDArray labels;
    private ChunkedHead head;
    private WeightUpdate sgd;
    private int step;

    /** Makes the arrays. */
    @Setup
    public void begin() {
        LibTorch.load().setRandomSeed(7);
        NativeAllocator.keepFreedArrays();
        manager = NDManager.newBaseManager();
        features = manager.randomNormal(new Shape(ROWS, FEATURES));
        weight = manager.randomNormal(new Shape(CLASSES, FEATURES)).mul(0.01f);
        labels = manager.randomInteger(0, CLASSES, new Shape(ROWS), DataType.INT64);
        sgd = WeightUpdate.sgd(WeightUpdate.Settings.DEFAULT, 0);
        head =
                new ChunkedHead(
                        LocalCommunicator.create(1).get(0),
                        Cut.ofLengths(CLASSES),
                        BUDGET,
                        0,
                        HeadOptions.DEFAULT);
    }

    /** Frees them. */
    @TearDown
    public void end() {
        head.close();
        sgd.close();
        manager.close();
    }

    /** Computes the loss and the gradient of the features. */
    @Benchmark
    public void loss() {
        free(head.evaluate(features, weight, null, labels, LossOptions.DEFAULT));
    }

    /** Computes the loss, and updates the weight. */
    @Benchmark
    public void lossAndUpdate() {
        free(head.evaluate(features, weight, null, labels, LossOptions.DEFAULT));
        sgd.begin(1e-3f, ++step);
        head.update(weight, null, null, sgd, 1, null);
    }

    private static void free(ChunkedHead.Result result) {
        result.value().close();
        result.gradient().close();
    }
}
