package io.djltp.jmh;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;

import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.TensorView;
import io.djltp.internal.update.ListedUpdates;
import io.djltp.internal.update.WeightUpdate;

import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.BenchmarkMode;
import org.openjdk.jmh.annotations.Fork;
import org.openjdk.jmh.annotations.Level;
import org.openjdk.jmh.annotations.Measurement;
import org.openjdk.jmh.annotations.Mode;
import org.openjdk.jmh.annotations.OutputTimeUnit;
import org.openjdk.jmh.annotations.Param;
import org.openjdk.jmh.annotations.Scope;
import org.openjdk.jmh.annotations.Setup;
import org.openjdk.jmh.annotations.State;
import org.openjdk.jmh.annotations.TearDown;
import org.openjdk.jmh.annotations.Warmup;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;

/** A step of Adam for 500 weights of 64 x 64. */
@State(Scope.Benchmark)
@BenchmarkMode(Mode.AverageTime)
@OutputTimeUnit(TimeUnit.MILLISECONDS)
@Fork(1)
@Warmup(iterations = 3, time = 1)
@Measurement(iterations = 5, time = 1)
public class AdamBenchmark {

    private static final int WEIGHTS = 500;

    /** The threads of an operation. */
    @Param({"1", "2"})
    public int threads;

    /** Whether one call updates all weights. */
    @Param({"true", "false"})
    public boolean listed;

    private final List<WeightUpdate> updates = new ArrayList<>();
    private final List<NDArray> weights = new ArrayList<>();
    private final List<NDArray> gradients = new ArrayList<>();
    private final ListedUpdates all = new ListedUpdates();
    private NDManager manager;
    private int step;

    /** Makes the weights. */
    @Setup(Level.Trial)
    public void begin() {
        manager = NDManager.newBaseManager();
        for (int i = 0; i < WEIGHTS; i++) {
            WeightUpdate.Settings settings = WeightUpdate.Settings.DEFAULT;
            updates.add(WeightUpdate.adam(settings, 0.9f, 0.999f, 1e-8f, false));
            weights.add(manager.randomNormal(new Shape(64, 64)));
            gradients.add(manager.randomNormal(new Shape(64, 64)));
        }
    }

    /** Frees them. */
    @TearDown(Level.Trial)
    public void end() {
        updates.forEach(WeightUpdate::close);
        manager.close();
    }

    /** Makes a step. */
    @Benchmark
    public void step() {
        if (Autograd.getThreads() != threads) {
            Autograd.setThreads(threads);
        }
        step++;
        for (int i = 0; i < WEIGHTS; i++) {
            updates.get(i).begin(1e-3f, step);
            all.add(updates.get(i), weights.get(i), TensorView.of(gradients.get(i)), null);
            if (!listed) {
                all.run();
            }
        }
        all.run();
    }
}
