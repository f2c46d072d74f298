package io.djltp.training;

import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.TrainingRun.backward;
import static io.djltp.testing.TrainingRun.held;
import static io.djltp.testing.TrainingRun.labels;
import static io.djltp.testing.TrainingRun.random;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertFalse;
import static org.testng.Assert.assertTrue;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.LambdaBlock;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.GradientCollector;
import ai.djl.util.Utils;

import io.djltp.collective.Communicator;
import io.djltp.collective.ReduceOp;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.torch.TensorView;
import io.djltp.job.Job;
import io.djltp.job.JobFailedException;
import io.djltp.launch.Launcher;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.ParallelMode;
import io.djltp.rank.RankFailedException;
import io.djltp.testing.Configs;
import io.djltp.testing.Ranks;
import io.djltp.testing.TrainerKind;

import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;

/**
 * A rank of one process fails or does something else than the others, at the third step: all
 * processes say so. They go through all faults of all modes one after another, each in a job of its
 * own.
 */
public class ProcessFailureTest {

    private static final String DIFFERENT = "the ranks called different operations: ";
    private static final int STEP = 3; // at which it happens
    private static final int RANKS = 4;
    private static final int STEPS = 6;
    private static final int BATCH = 8;

    /** How long a rank waits for the others. */
    private static final Duration TIMEOUT = Duration.ofSeconds(4);

    /** How long a process waits for the other to start, which a busy machine delays. */
    private static final Duration JOIN_TIMEOUT = Duration.ofSeconds(60);

    private final List<List<String>> outputs = new ArrayList<>();

    /** What a rank does, and what both processes say, V being the rank and W its neighbour. */
    private enum Fault {
        /** Throws in its forward pass. */
        THROW(0, "rank V .*RankFailedException.*rank V.*failed: .*State.*: no more forward"),
        /** Leaves out a collective operation that the others call; its layers call the next. */
        LEAVE_OUT(
                0,
                DIFFERENT,
                "rank W all-reduce #\\d+ \\(MAX\\) of \\(7\\)",
                "rank V all-[a-z]+ #\\d+ .*of \\((?!7\\))"),
        /** Calls another collective operation than the others. */
        CALL_ANOTHER(0, DIFFERENT, "rank W all-reduce", "rank V broadcast"),
        /** Changes one of its replicas a little. */
        DRIFT(3, "after step 3 rank 3 has other values of .*weight \\(6, 5\\) than rank 0"),
        /** Its process iterates another batch. */
        OTHER_BATCH(2, "in step 3 rank 2 has the data of another batch than rank 0"),
        /** Its process has other labels, which the loss is given and the forward pass is not. */
        OTHER_LABELS(2, "in step 3 rank 2 has the labels of another batch than rank 0"),
        /** Its process evaluates another batch, after the step. */
        OTHER_EVALUATION(
                2, "in evaluation batch 1 after step 3 rank 2 has the data of another batch"),
        /**
         * Its process makes a step of two batches. Nobody tells how many make a step: in tensor
         * mode the comparison of the second one meets that of the replicas, as many numbers, and
         * whoever is first says what differs.
         */
        ANOTHER_BATCH_IN_STEP(
                2,
                "step 3 rank 2 has .*(the same batches, in the same order|drifted apart)"
                        + "|the ranks called different operations.* as many batches"),
        /**
         * Its process freezes the last layer between a backward pass and the update. What is cut is
         * updated by each rank alone: the others would train on without its part.
         */
        FREEZE(
                2,
                DIFFERENT,
                "rank 2 all-[^;]*, with 2 of 4 parameters frozen, the last"
                        + " 03ColumnParallelLinear_bias \\(checksum [0-9a-f]+\\)",
                "Freeze and thaw the same parameters on all processes"),
        /** Its process makes one step less; in data mode it has the whole model. */
        STOP_EARLY(
                2,
                DIFFERENT.replace(": ", "") + ".*|the connection to rank [23] was lost in |trained",
                "issued by the close of the trainer|lost|trained",
                "as many batches.*settings\\? One in the close of the trainer has|lost|trained"),
        /** So, where the others compare batches: its close gathers as many numbers. */
        CLOSE_AT_COMPARISON(
                2,
                DIFFERENT,
                "issued by the comparison of batches",
                "issued by the close of the trainer, comparing replicas"),
        /** Its process throws before it has begun to train, and leaves the trainer open. */
        LEAVE_OPEN(
                0,
                "caller: java.lang.IllegalStateException: no data$|remote: .*process \\d \\(.*\\)"
                        + " has left the job with a trainer or predictor open: see the output of"
                        + " its process for an exception"),
        /** Its process alone saves the model at the end, where the others close. */
        SAVE_ALONE(
                3,
                DIFFERENT,
                "issued by the save of the model, which all processes call",
                "issued by the close of the trainer"),
        /** Its process alone saves the model at the end, while the others call nothing. */
        SAVE_UNHEARD(
                3,
                "time-out after 4000 ms: rank \\d waits in .*the save of the model, which all"
                        + " processes call"),
        /** The caller's code throws in its process, which tells the others. */
        CALLER_THROWS(
                2,
                "rank -1 remote: .*process 1 \\(.*\\) failed: java.lang.IllegalStateException: no"
                        + " more batches|caller: java.lang.IllegalStateException: no more"
                        + " batches$"),
        /** Does not come. */
        SLEEP(0, "time-out after 4000 ms: rank \\d waits in .* for .*V");

        private final int fixed;
        private final String[] patterns;

        Fault(int victim, String... patterns) {
            fixed = victim;
            this.patterns = patterns;
        }

        /** Returns the rank: of the process of rank 0, or of the other one. */
        private int victim(ParallelMode mode) {
            return fixed > 0 ? fixed : 1 + mode.ordinal();
        }
    }

    @DataProvider
    public Object[][] faults() {
        return TrainerKind.rows(List.of(ParallelMode.values()), List.of(Fault.values()));
    }

    @Test(dataProvider = "faults")
    public void allProcessesSaySo(ParallelMode mode, Fault fault) {
        int victim = fault.victim(mode);
        List<String> said = reports(mode, fault);
        for (String report : said) {
            for (String pattern : fault.patterns) {
                String own = pattern.replace("V", "" + victim).replace("W", "" + (victim ^ 1));
                assertTrue(report.matches(".*(?:" + own + ").*"), own + " in " + report);
            }
        }
        String here = said.get(victim / 2);
        String there = said.get(1 - victim / 2);
        switch (fault) {
            case THROW -> {
                assertTrue(here.startsWith("rank " + victim + " here: "), here);
                assertTrue(there.startsWith("rank " + victim + " remote: "), there);
            }
            case FREEZE ->
                    said.forEach(
                            report -> assertFalse(report.matches(".*rank 0 all-[^;]*frozen, .*")));
            case CALL_ANOTHER ->
                    said.forEach(report -> assertFalse(report.contains("frozen"), report));
            case ANOTHER_BATCH_IN_STEP ->
                    said.forEach(
                            report ->
                                    assertEquals(
                                            report.contains(DIFFERENT),
                                            mode != ParallelMode.TENSOR,
                                            report));
            case STOP_EARLY -> {
                boolean whole = mode == ParallelMode.DATA;
                assertEquals(here.equals("trained"), whole, here);
                assertEquals(there.startsWith("rank") && there.contains("lost"), whole, there);
            }
            case LEAVE_OPEN, CALLER_THROWS -> {
                assertTrue(here.startsWith("caller: "), here);
                assertTrue(there.contains("process " + victim / 2 + " ("), there);
            }
            default -> {}
        }
    }

    private List<String> reports(ParallelMode mode, Fault fault) {
        String start = "REPORT " + mode + " " + fault + " ";
        List<String> reports = new ArrayList<>();
        for (List<String> output : outputs) {
            List<String> lines = output.stream().filter(line -> line.startsWith(start)).toList();
            assertEquals(lines.size(), 1, "" + output);
            reports.add(lines.get(0).substring(start.length()));
        }
        return reports;
    }

    /** Runs processes that have all faults of all modes. */
    @BeforeClass(timeOut = 300_000)
    public void runProcesses() throws IOException, InterruptedException {
        int jobs = ParallelMode.values().length * Fault.values().length;
        outputs.addAll(JobProcess.run(getClass(), 240, JobProcess.ports(jobs), 0, 0));
    }

    /**
     * Trains once for each mode and fault, in a job of its own, and reports how each has ended.
     *
     * @param ports the port of each job
     */
    public static void main(String[] ports) {
        int number = 0;
        for (ParallelMode mode : ParallelMode.values()) {
            for (Fault fault : Fault.values()) {
                Map<String, String> environment = new HashMap<>(System.getenv());
                environment.put("MASTER_PORT", ports[number++]);
                String report = new Faulty(mode, fault).run(environment);
                System.out.println("REPORT " + mode + " " + fault + " " + report);
            }
        }
        System.exit(0); // a rank may still sleep
    }

    /** A training in which a rank has a fault. */
    private static final class Faulty {

        /** By default batches are compared before the steps 1, 2, 4, 8 .., replicas after them. */
        private static final int STEPS_TO_COMPARISON = 3;

        /** What is found where nothing is said of comparisons. */
        private static final Set<Fault> BY_DEFAULT =
                EnumSet.of(Fault.CLOSE_AT_COMPARISON, Fault.FREEZE, Fault.OTHER_EVALUATION);

        private static final Set<Fault> SAVES = EnumSet.of(Fault.SAVE_ALONE, Fault.SAVE_UNHEARD);

        private final ParallelMode mode;
        private final Fault fault;
        private final int victim;
        private int step;

        Faulty(ParallelMode mode, Fault fault) {
            this.mode = mode;
            this.fault = fault;
            victim = fault.victim(mode);
        }

        String run(Map<String, String> environment) {
            try (Job job = Launcher.join(environment, RANKS, JOIN_TIMEOUT);
                    Model model = Model.newInstance("net", Device.cpu(), "PyTorch")) {
                train(model, job);
                return "trained";
            } catch (RankFailedException e) {
                return "rank " + e.getRank() + (e.isRemote() ? " remote: " : " here: ") + e;
            } catch (JobFailedException e) {
                return "job: " + e;
            } catch (IllegalStateException e) {
                return "caller: " + e;
            }
        }

        private void train(Model model, Job job) {
            model.setBlock(sequence(linear(6), new LambdaBlock(this::pass), head(10)));
            if (fault == Fault.CALL_ANOTHER) { // on all processes, of which nothing is to be said
                model.getBlock().getChildren().valueAt(0).freezeParameters(true);
            }
            ParallelConfig.Builder ranks =
                    Ranks.builder(mode, job.getRanks())
                            .optJob(job)
                            .optDevices(Collections.nCopies(job.getLocalRanks(), Device.cpu()))
                            .optTimeout(TIMEOUT);
            if (!BY_DEFAULT.contains(fault)) {
                ranks.optDriftCheck(SAVES.contains(fault) ? 100 : 1);
            }
            DefaultTrainingConfig config = Configs.of(new VocabParallelCrossEntropyLoss());
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
                    step(trainer, job, here && step == STEP);
                }
                if (SAVES.contains(fault) && here) {
                    save(trainer);
                } else if (fault == Fault.SAVE_UNHEARD) {
                    sleep(3); // a rank asks the job for another reason before it tells the time-out
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

        private void step(ParallelTrainer trainer, Job job, boolean faulty) {
            if (fault == Fault.DRIFT && faulty) {
                held(trainer, victim - job.getFirstRank(), 0).get("0, 0:1").addi(1e-6f);
            }
            if (fault == Fault.CALLER_THROWS && faulty) {
                IllegalStateException e = new IllegalStateException("no more batches");
                job.fail(-1, e);
                throw e;
            }
            try (NDManager manager = trainer.getManager().newSubManager()) {
                int seed = fault == Fault.OTHER_BATCH && faulty ? 100 : step;
                NDList data = new NDList(random(manager, seed, BATCH, 5));
                NDArray labels = labels(manager, seed, BATCH, 9);
                if (fault == Fault.OTHER_LABELS) {
                    late(trainer, data, new NDList(labels.add(faulty ? 1 : 0)));
                } else {
                    backward(trainer, data, new NDList(labels));
                }
                if (fault == Fault.ANOTHER_BATCH_IN_STEP && faulty) {
                    backward(trainer, data, new NDList(labels));
                }
                if (fault == Fault.FREEZE && faulty) {
                    trainer.getModel().getBlock().getChildren().valueAt(2).freezeParameters(true);
                }
                trainer.step();
                if (fault == Fault.OTHER_EVALUATION && step == STEP) {
                    trainer.evaluate(new NDList(random(manager, faulty ? 100 : step, BATCH, 5)));
                }
            }
        }

        private static void late(ParallelTrainer trainer, NDList data, NDList labels) {
            try (GradientCollector collector = trainer.newGradientCollector()) {
                NDList output = trainer.forward(data);
                collector.backward(trainer.getLoss().evaluate(labels, output));
            }
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
                TensorView view = TensorView.of(array);
                if (fault == Fault.LEAVE_OUT && !faulty) {
                    world.allReduce(view, ReduceOp.MAX).await();
                } else if (fault == Fault.CALL_ANOTHER) {
                    (faulty ? world.broadcast(view, 0) : world.allReduce(view, ReduceOp.SUM))
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
}
