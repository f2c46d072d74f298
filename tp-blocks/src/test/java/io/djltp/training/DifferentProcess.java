package io.djltp.training;

import static io.djltp.testing.Blocks.column;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.sequence;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.Blocks;
import ai.djl.nn.LambdaBlock;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.GradientCollector;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import io.djltp.job.Job;
import io.djltp.launch.Launcher;
import io.djltp.layout.ParallelMode;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.ParallelDropout;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.RankFailedException;

import java.time.Duration;
import java.util.Collections;
import java.util.HashMap;
import java.util.Map;

/** One process of a job in which process 1 has something else in each training but the last. */
public final class DifferentProcess {

    private static final int BATCH = 4;
    private static final int FEATURES = 5;

    private DifferentProcess() {}

    /** What process 1 has. */
    enum Difference {
        UNITS,
        FROZEN,
        BLOCK,
        MORE_BLOCKS,
        MODE,
        CLIP_NORM,
        DRIFT_CHECK,
        RATE,
        MOMENTUM,
        OPTIMIZER,
        LOSS,
        NO_LOSS,
        FAILING_BLOCK,
        REFUSED_BY_ALL,
        SEED,
        SEED_OF_REPLICAS,
        LOADED,
        NONE
    }

    /**
     * Trains once for each difference, all in one job, and reports how each has ended.
     *
     * @param args the port of the job
     */
    public static void main(String[] args) {
        Map<String, String> environment = new HashMap<>(System.getenv());
        environment.put("MASTER_PORT", args[0]);
        try (Job job = Launcher.join(environment, 2, Duration.ofSeconds(60))) {
            for (Difference difference : Difference.values()) {
                System.out.println("REPORT " + difference + " " + run(job, difference));
            }
            for (DifferentOption option : DifferentOption.values()) {
                System.out.println("REPORT " + option + " " + initialize(job, option));
            }
        }
    }

    private static String initialize(Job job, DifferentOption option) {
        Engine.getEngine("PyTorch").setRandomSeed(1);
        Object made = option.of(job.getProcess());
        boolean tracked = made instanceof Tracker;
        Tracker rate = tracked ? (Tracker) made : Tracker.fixed(0.1f);
        Loss loss = made instanceof Loss ? (Loss) made : new VocabParallelCrossEntropyLoss();
        DefaultTrainingConfig config =
                new DefaultTrainingConfig(loss)
                        .optOptimizer(Optimizer.sgd().setLearningRateTracker(rate).build());
        try (Model model = Model.newInstance("net", Device.cpu(), "PyTorch")) {
            model.setBlock(made instanceof Block ? (Block) made : DifferentOption.linear());
            try (ParallelTrainer trainer =
                    new ParallelTrainer(model, config, ranks(job, Difference.NONE))) {
                trainer.initialize(new Shape(BATCH, 6, 8));
            }
            return "initialized";
        } catch (RuntimeException e) {
            return e.toString();
        }
    }

    private static String run(Job job, Difference difference) {
        Difference here = job.getProcess() == 0 ? Difference.NONE : difference;
        if (difference == Difference.REFUSED_BY_ALL) {
            here = difference;
        }
        boolean drawn = here == Difference.SEED || here == Difference.SEED_OF_REPLICAS;
        Engine.getEngine("PyTorch").setRandomSeed(drawn || here == Difference.LOADED ? 2 : 1);
        try (Model model = Model.newInstance("net", Device.cpu(), "PyTorch")) {
            Block network = network(here);
            model.setBlock(network);
            if (here == Difference.FROZEN) {
                network.getChildren().valueAt(0).freezeParameters(true);
            }
            boolean inData = difference == Difference.SEED_OF_REPLICAS;
            boolean loaded = // as after model.load
                    difference == Difference.UNITS || difference == Difference.LOADED;
            if (loaded) {
                Shape input = new Shape(BATCH, FEATURES);
                network.initialize(model.getNDManager(), DataType.FLOAT32, input);
            }
            try (ParallelTrainer trainer =
                    new ParallelTrainer(
                            model, config(here), ranks(job, inData ? Difference.MODE : here))) {
                trainer.initialize(new Shape(BATCH, FEATURES));
                step(trainer);
            } catch (RankFailedException e) {
                if (loaded) {
                    return e + ", sum " + sum(network);
                }
                return e.toString();
            }
            return "trained, sum " + sum(network);
        } catch (RuntimeException e) {
            return e.toString();
        }
    }

    private static float sum(Block network) {
        return network.getParameters().valueAt(2).getArray().sum().getFloat();
    }

    private static Block network(Difference here) {
        return sequence(
                linear(6),
                here == Difference.BLOCK
                        ? ParallelDropout.builder().optRate(0.1f).build()
                        : Activation.reluBlock(),
                ParallelDropout.builder().optRate(0).build(),
                ColumnParallelLinear.builder()
                        .setUnits(here == Difference.UNITS ? 9 : 8)
                        .optGatherOutput(true)
                        .build(),
                here == Difference.FAILING_BLOCK
                        ? sequence(new LambdaBlock(l -> new NDList(l.get(1))))
                        : Blocks.identityBlock(),
                here == Difference.REFUSED_BY_ALL
                        ? column(1)
                        : here == Difference.MORE_BLOCKS
                                ? sequence(Activation.reluBlock())
                                : Blocks.identityBlock(),
                new LambdaBlock(list -> list));
    }

    private static DefaultTrainingConfig config(Difference here) {
        Loss loss =
                switch (here) {
                    case LOSS -> Loss.l1Loss();
                    case NO_LOSS -> null;
                    default -> Loss.l2Loss();
                };
        Tracker rate = Tracker.fixed(here == Difference.RATE ? 0.02f : 0.01f);
        Optimizer sgd =
                Optimizer.sgd()
                        .setLearningRateTracker(rate)
                        .optMomentum(here == Difference.MOMENTUM ? 0.9f : 0)
                        .build();
        Optimizer adam = Optimizer.adam().optLearningRateTracker(rate).build();
        return new DefaultTrainingConfig(loss)
                .optOptimizer(here == Difference.OPTIMIZER ? adam : sgd);
    }

    private static ParallelConfig ranks(Job job, Difference here) {
        ParallelConfig.Builder builder =
                ParallelConfig.builder()
                        .setMode(here == Difference.MODE ? ParallelMode.DATA : ParallelMode.TENSOR)
                        .setRanks(job.getRanks())
                        .optJob(job)
                        .optDevices(Collections.nCopies(job.getLocalRanks(), Device.cpu()));
        if (here == Difference.CLIP_NORM) {
            builder.optGradientClipNorm(1);
        }
        if (here == Difference.DRIFT_CHECK) {
            builder.optDriftCheck(3);
        }
        return builder.build();
    }

    private static void step(ParallelTrainer trainer) {
        try (NDManager manager = trainer.getManager().newSubManager();
                GradientCollector collector = trainer.newGradientCollector()) {
            NDArray labels = manager.ones(new Shape(BATCH, 8));
            NDList output =
                    trainer.forward(
                            new NDList(manager.ones(new Shape(BATCH, FEATURES))),
                            new NDList(labels));
            collector.backward(trainer.getLoss().evaluate(new NDList(labels), output));
        }
        trainer.step();
    }
}
