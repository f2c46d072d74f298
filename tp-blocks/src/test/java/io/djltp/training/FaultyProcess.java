package io.djltp.training;

import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.TrainingRun.backward;
import static io.djltp.testing.TrainingRun.labels;
import static io.djltp.testing.TrainingRun.random;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.LambdaBlock;
import ai.djl.nn.Parameter;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.GradientCollector;
import ai.djl.util.Utils;

import io.djltp.collective.Communicator;
import io.djltp.collective.ReduceOp;
import io.djltp.internal.torch.TensorView;
import io.djltp.job.Job;
import io.djltp.job.JobFailedException;
import io.djltp.launch.Launcher;
import io.djltp.layout.ParallelMode;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.ParallelContext;
import io.djltp.rank.RankFailedException;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Collections;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;

/** One process of jobs in each of which one rank does what it should not, at the third step. */
public final class FaultyProcess {

    /** The step at which it happens. */
    static final int STEP = 3;

    /** How long a rank waits for the others. */
    private static final Duration TIMEOUT = Duration.ofSeconds(4);

    /** How long a process waits for the other to start, which a busy machine delays. */
    private static final Duration JOIN_TIMEOUT = Duration.ofSeconds(60);

    /** By default batches are compared before the steps 1, 2, 4, 8 .., replicas after them. */
    private static final int STEPS_TO_COMPARISON = 3;

    /** What is found where nothing is said of comparisons. */
    private static final Set<Fault> BY_DEFAULT =
            EnumSet.of(Fault.CLOSE_AT_COMPARISON, Fault.FREEZE, Fault.OTHER_EVALUATION);

    private static final Set<Fault> SAVES = EnumSet.of(Fault.SAVE_ALONE, Fault.SAVE_UNHEARD);

    private static final int RANKS = 4;
    private static final int STEPS = 6;
    private static final int BATCH = 8;

    private final Fault fault;
    private final int victim;
    private int step;

    private FaultyProcess(Fault fault, int victim) {
        this.fault = fault;
        this.victim = victim;
    }

    /** What a rank does. */
    enum Fault {
        /** Throws in its forward pass. */
        THROW,
        /** Leaves out a collective operation that the others call. */
        LEAVE_OUT,
        /** Calls another collective operation than the others. */
        CALL_ANOTHER,
        /** Changes one of its replicas a little. */
        DRIFT,
        /** Its process iterates another batch. */
        OTHER_BATCH,
        /** Its process has other labels, which the loss is given and the forward pass is not. */
        OTHER_LABELS,
        /** Its process evaluates another batch, after the step. */
        OTHER_EVALUATION,
        /** Its process makes a step of two batches. */
        ANOTHER_BATCH_IN_STEP,
        /** Its process freezes the last layer between a backward pass and the update. */
        FREEZE,
        /** Its process makes one step less. */
        STOP_EARLY,
        /** So, where the others compare batches, and its close compares replicas. */
        CLOSE_AT_COMPARISON,
        /** Its process throws before it has begun to train, and leaves the trainer open. */
        LEAVE_OPEN,
        /** Its process alone saves the model at the end, where the others close. */
        SAVE_ALONE,
        /** Its process alone saves the model at the end, while the others call nothing. */
        SAVE_UNHEARD,
        /** The caller's code throws in its process, which tells the others. */
        CALLER_THROWS,
        /** Does not come. */
        SLEEP
    }

    /**
     * Trains once for each mode and fault, in a job of its own, and reports how each has ended.
     *
     * @param args for each job the mode, the fault, the rank that has it and the port
     */
    public static void main(String[] args) {
        for (int i = 0; i < args.length; i += 4) {
            Map<String, String> environment = new HashMap<>(System.getenv());
            environment.put("MASTER_PORT", args[i + 3]);
            FaultyProcess process =
                    new FaultyProcess(Fault.valueOf(args[i + 1]), Integer.parseInt(args[i + 2]));
            String report = process.run(environment, ParallelMode.valueOf(args[i]));
            System.out.println("REPORT " + args[i] + " " + args[i + 1] + " " + report);
        }
        System.exit(0); // a rank may still sleep
    }

    private String run(Map<String, String> environment, ParallelMode mode) {
        try (Job job = Launcher.join(environment, RANKS, JOIN_TIMEOUT);
                Model model = Model.newInstance("net", Device.cpu(), "PyTorch")) {
            train(model, job, mode);
            return "trained";
        } catch (RankFailedException e) {
            return "rank " + e.getRank() + (e.isRemote() ? " remote: " : " here: ") + e;
        } catch (JobFailedException e) {
            return "job: " + e;
        } catch (IllegalStateException e) {
            return "caller: " + e;
        }
    }

    private void train(Model model, Job job, ParallelMode mode) {
        Block body = linear(6);
        model.setBlock(sequence(body, new LambdaBlock(this::pass), head(10)));
        ParallelConfig.Builder ranks =
                ParallelConfig.builder()
                        .setMode(mode)
                        .setRanks(job.getRanks())
                        .optJob(job)
                        .optDevices(Collections.nCopies(job.getLocalRanks(), Device.cpu()))
                        .optTimeout(TIMEOUT);
        if (!BY_DEFAULT.contains(fault)) {
            ranks.optDriftCheck(SAVES.contains(fault) ? 100 : 1);
        }
        DefaultTrainingConfig config =
                new DefaultTrainingConfig(new VocabParallelCrossEntropyLoss());
        Engine.getInstance().setRandomSeed(3);
        boolean here = job.processOf(victim) == job.getProcess();
        ParallelTrainer open = new ParallelTrainer(model, config, ranks.build());
        if (fault == Fault.LEAVE_OPEN && here) {
            throw new IllegalStateException("no data");
        }
        try (ParallelTrainer trainer = open) {
            trainer.initialize(new Shape(BATCH, 5));
            int steps = here ? ownSteps() : STEPS;
            for (step = 1; step <= steps; step++) {
                if (fault == Fault.DRIFT && here && step == STEP) {
                    drift(trainer, victim - job.getFirstRank(), body);
                }
                if (fault == Fault.CALLER_THROWS && here && step == STEP) {
                    IllegalStateException e = new IllegalStateException("no more batches");
                    job.fail(-1, e);
                    throw e;
                }
                boolean faulty = here && step == STEP;
                boolean other = fault == Fault.OTHER_BATCH && faulty;
                boolean another = fault == Fault.ANOTHER_BATCH_IN_STEP && faulty;
                boolean freezes = fault == Fault.FREEZE && faulty;
                Block frozen = freezes ? model.getBlock().getChildren().valueAt(2) : null;
                if (fault == Fault.OTHER_LABELS) {
                    stepWithLateLabels(trainer, step, faulty ? 1 : 0);
                } else {
                    step(trainer, other ? 100 : step, another ? 2 : 1, frozen);
                }
                if (fault == Fault.OTHER_EVALUATION && step == STEP) {
                    evaluate(trainer, faulty ? 100 : step);
                }
            }
            if (SAVES.contains(fault) && here) {
                save(trainer);
            } else if (fault == Fault.SAVE_UNHEARD) {
                sleep(3); // a rank asks the job for another reason before it reports the time-out
            }
        }
    }

    private int ownSteps() {
        return switch (fault) {
            case STOP_EARLY -> STEP;
            case CLOSE_AT_COMPARISON -> STEPS_TO_COMPARISON;
            default -> STEPS;
        };
    }

    private static void save(ParallelTrainer trainer) {
        try {
            Path folder = Files.createTempDirectory("alone");
            trainer.save(folder, "net");
            Utils.deleteQuietly(folder);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    private static void drift(ParallelTrainer trainer, int localRank, Block body) {
        Parameter weight = body.getParameters().valueAt(0);
        NDArray value = trainer.getParameterStore(localRank).getValue(weight, null, false);
        value.get("0, 0:1").addi(1e-6f);
    }

    private static void step(ParallelTrainer trainer, int seed, int batches, Block frozen) {
        try (NDManager manager = trainer.getManager().newSubManager()) {
            NDList data = new NDList(random(manager, seed, BATCH, 5));
            NDList labels = new NDList(labels(manager, seed, BATCH, 10));
            for (int i = 0; i < batches; i++) {
                backward(trainer, data, labels);
            }
            if (frozen != null) {
                frozen.freezeParameters(true);
            }
            trainer.step();
        }
    }

    private static void evaluate(ParallelTrainer trainer, int seed) {
        try (NDManager manager = trainer.getManager().newSubManager()) {
            trainer.evaluate(new NDList(random(manager, seed, BATCH, 5)));
        }
    }

    private static void stepWithLateLabels(ParallelTrainer trainer, int seed, int shift) {
        try (NDManager manager = trainer.getManager().newSubManager();
                GradientCollector collector = trainer.newGradientCollector()) {
            NDList data = new NDList(random(manager, seed, BATCH, 5));
            NDArray labels = labels(manager, seed, BATCH, 9).add(shift);
            NDList output = trainer.forward(data);
            collector.backward(trainer.getLoss().evaluate(new NDList(labels), output));
            trainer.step();
        }
    }

    private NDList pass(NDList input) {
        ParallelContext context = ParallelContext.current();
        // without a context DJL asks for the shape of the output
        if (context != null && step == STEP) {
            fail(context, context.getRank() == victim, input.head().getManager());
        }
        return input;
    }

    private void fail(ParallelContext context, boolean faulty, NDManager manager) {
        if (faulty && fault == Fault.THROW) {
            throw new IllegalStateException("no more forward");
        }
        if (faulty && fault == Fault.SLEEP) {
            sleep(1);
        }
        Communicator world = context.getWorld();
        world.setIssuer("the test");
        try (NDArray array = manager.ones(new Shape(7))) {
            if (fault == Fault.LEAVE_OUT && !faulty) {
                world.allReduce(TensorView.of(array), ReduceOp.MAX).await();
            } else if (fault == Fault.CALL_ANOTHER) {
                (faulty
                                ? world.broadcast(TensorView.of(array), 0)
                                : world.allReduce(TensorView.of(array), ReduceOp.SUM))
                        .await();
            }
        }
    }

    private static void sleep(int timeouts) {
        try {
            TimeUnit.MILLISECONDS.sleep(timeouts * TIMEOUT.toMillis() + 2000);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }
}
