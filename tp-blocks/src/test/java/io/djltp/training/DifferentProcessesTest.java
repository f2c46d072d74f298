package io.djltp.training;

import static io.djltp.testing.Blocks.column;
import static io.djltp.testing.Blocks.gathered;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.map;
import static io.djltp.testing.Blocks.relu;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.TrainingRun.random;
import static io.djltp.testing.TrainingRun.step;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertTrue;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.LambdaBlock;
import ai.djl.nn.Parameter;
import ai.djl.training.initializer.Initializer;
import ai.djl.training.initializer.NormalInitializer;
import ai.djl.training.initializer.XavierInitializer;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.CyclicalTracker;
import ai.djl.training.tracker.CyclicalTracker.CyclicalMode;
import ai.djl.training.tracker.Tracker;

import io.djltp.job.Job;
import io.djltp.nn.ParallelDropout;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.ParallelMode;
import io.djltp.rank.RankFailedException;
import io.djltp.testing.Configs;
import io.djltp.testing.ThreadedJob;
import io.djltp.testing.TrainerKind;

import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;

/**
 * Processes whose networks or settings differ end before the first step, all of them and with the
 * same words; the job goes on with what is the same.
 */
public class DifferentProcessesTest {

    private static final String SAME = "(, sum [-0-9.E]+)?";
    private static final String PROCESS_0 = " on process 0 \\(rank 0, pid \\d+ on .*\\)";
    private static final String PROCESS_1 = " on process 1 \\(rank 1, pid \\d+ on .*\\)";
    private static final String REMEDY =
            ": build the same network, with the same settings, on all processes";
    private static final String SEED_REMEDY =
            ": set the same seed \\(Engine.getInstance\\(\\).setRandomSeed\\) and initializers, or"
                    + " load the same file, on all processes";
    private static final String NETWORKS = "RankFailedException: the networks";
    private static final String SETTINGS = "JobFailedException: the settings of the trainers";

    private static final Map<String, Row> ROWS = new LinkedHashMap<>();

    /** What a process trains. */
    private static final class Setup {
        private long units = 8;
        private Block second = relu();
        private Block fifth = map(x -> x);
        private Block sixth = map(x -> x);
        private boolean frozen;
        private boolean loaded; // as after model.load
        private int seed = 1;
        private Initializer initializer;
        private Loss loss = Loss.l2Loss();
        private Optimizer optimizer = Configs.sgd(0.01f);
        private ParallelMode mode = ParallelMode.TENSOR;
        private Consumer<ParallelConfig.Builder> ranks = builder -> {};

        Block network() {
            Block network =
                    sequence(
                            linear(6),
                            second,
                            ParallelDropout.builder().optRate(0).build(),
                            gathered(units),
                            fifth,
                            sixth,
                            map(x -> x));
            // not the generator, which threads share
            network.setInitializer(
                    (m, shape, type) -> random(m, seed, shape.getShape()), Parameter.Type.WEIGHT);
            if (initializer != null) {
                network.getChildren().valueAt(3).setInitializer(initializer, Parameter.Type.WEIGHT);
            }
            network.getChildren().valueAt(0).freezeParameters(frozen);
            return network;
        }

        String train(Job job) {
            try (Model model = Model.newInstance("net", Device.cpu())) {
                Block network = network();
                model.setBlock(network);
                Shape input = new Shape(4, 5);
                if (loaded) {
                    network.initialize(model.getNDManager(), DataType.FLOAT32, input);
                }
                ParallelConfig.Builder builder =
                        ParallelConfig.builder().setMode(mode).setRanks(2).optJob(job);
                ranks.accept(builder);
                try (ParallelTrainer trainer =
                        new ParallelTrainer(model, Configs.of(loss, optimizer), builder.build())) {
                    trainer.initialize(input);
                    NDManager manager = trainer.getManager();
                    step(trainer, manager.ones(input), manager.ones(new Shape(4, 8)));
                } catch (RankFailedException e) {
                    return loaded ? e + ", sum " + sum(network) : e.toString();
                }
                return "trained, sum " + sum(network);
            } catch (RuntimeException e) {
                return e.toString();
            }
        }

        private static float sum(Block network) {
            return network.getParameters().valueAt(2).getArray().sum().getFloat();
        }
    }

    /** What both processes have, what process 1 has instead, and what both report. */
    private static final class Row {
        private Consumer<Setup> both = setup -> {};
        private final Consumer<Setup> other;
        private String[] expected; // of both, or of each
        private List<String> reports;

        Row(Consumer<Setup> other) {
            this.other = other;
        }

        Row both(Consumer<Setup> change) {
            both = change;
            return this;
        }

        Row report(String... patterns) {
            expected = patterns;
            return this;
        }

        Row differs(String whose, String what, String first, String second) {
            return report(
                    ".*%s differ between the processes: \\Q%s is %s\\E%s and \\Q%s\\E%s%s%s"
                            .formatted(
                                    whose, what, first, PROCESS_0, second, PROCESS_1, REMEDY,
                                    SAME));
        }
    }

    private static Row add(String name, Consumer<Setup> other) {
        Row row = new Row(other);
        ROWS.put(name, row);
        return row;
    }

    static {
        add("units", setup -> setup.units = 9)
                .both(setup -> setup.loaded = true)
                .differs(
                        NETWORKS,
                        "the parameter 04ColumnParallelLinear_weight",
                        "(8, 6) float32, cut along axis 0 (Axiswise)",
                        "(9, 6) float32, cut along axis 0 (Axiswise)");
        add("frozen", setup -> setup.frozen = true)
                .differs(
                        NETWORKS,
                        "the parameter 01Linear_weight",
                        "(6, 5) float32",
                        "(6, 5) float32, frozen");
        String lambda = "ai.djl.nn.LambdaBlock";
        add("block", s -> s.second = ParallelDropout.builder().optRate(0.1f).build())
                .differs(NETWORKS, "the network/02LambdaBlock", lambda, "not there");
        add("more blocks", setup -> setup.sixth = sequence(relu()))
                .differs(NETWORKS, "the network/06LambdaBlock", lambda, "not there");
        String init = "ai.djl.training.initializer.";
        add("initializer", setup -> setup.initializer = new XavierInitializer())
                .both(setup -> setup.initializer = new NormalInitializer())
                .differs(
                        NETWORKS,
                        "the initializer of 04ColumnParallelLinear_weight",
                        init + "NormalInitializer",
                        init + "XavierInitializer");
        add("mode", setup -> setup.mode = ParallelMode.DATA)
                .differs(SETTINGS, "the mode or mesh", "TENSOR mode", "DATA mode");
        add("norm", setup -> setup.ranks = builder -> builder.optGradientClipNorm(1))
                .differs(SETTINGS, "optGradientClipNorm", "0.0", "1.0");
        add("drift check", setup -> setup.ranks = builder -> builder.optDriftCheck(3))
                .differs(SETTINGS, "optDriftCheck", "after steps 1, 2, 4, 8, ...", "every 3 steps");
        String tracker = "the optimizer.learningRateTracker.";
        add("rate", setup -> setup.optimizer = Configs.sgd(0.02f))
                .differs(SETTINGS, tracker + "value", "0.01", "0.02");
        add("momentum", setup -> setup.optimizer = Configs.sgd(0.01f, 0.9f))
                .differs(SETTINGS, "the optimizer.momentum", "0.0", "0.9");
        String rules = "ai.djl.training.optimizer.";
        add("optimizer", setup -> setup.optimizer = Configs.adam(0.01f))
                .differs(SETTINGS, "the optimizer", rules + "Sgd", rules + "Adam");
        add("steps", setup -> setup.optimizer = steps(4))
                .both(setup -> setup.optimizer = steps(3))
                .differs(SETTINGS, tracker + "steps", "[1, 3]", "[1, 4]");
        String cyclical = "ai.djl.training.tracker.CyclicalTracker$Triangular";
        add("mode of a cycle", setup -> setup.optimizer = cycles(CyclicalMode.TRIANGULAR2))
                .both(setup -> setup.optimizer = cycles(CyclicalMode.TRIANGULAR))
                .differs(
                        SETTINGS,
                        tracker + "scaleFunction",
                        cyclical + "ScaleFunction",
                        cyclical + "2ScaleFunction");
        String losses = "ai.djl.training.loss.";
        add("loss", setup -> setup.loss = Loss.l1Loss())
                .differs(SETTINGS, "the loss", losses + "L2Loss", losses + "L1Loss");
        // what is cut would be a mixture: each process draws it whole, and keeps its part
        String values =
                (".*RankFailedException: the initial values differ between the processes: the"
                                + " checksum of 04ColumnParallelLinear_weight is [0-9a-f]+%s"
                                + " and [0-9a-f]+%s%s%s")
                        .formatted(PROCESS_0, PROCESS_1, SEED_REMEDY, SAME);
        add("seed", setup -> setup.seed = 2).report(values);
        add("loaded values", setup -> setup.seed = 2)
                .both(setup -> setup.loaded = true)
                .report(values);
        // of what is not cut, the values of rank 0 count
        add("seed of replicas", setup -> setup.seed = 2)
                .both(setup -> setup.mode = ParallelMode.DATA)
                .report("trained, sum .*");
        add("a block that fails", s -> s.fifth = new LambdaBlock(l -> new NDList(l.get(1))))
                .report(
                        ".*process 1 \\(.*\\) failed: java.lang.IndexOutOfBounds.*",
                        "java.lang.IndexOutOfBoundsException.*");
        add("no loss", setup -> setup.loss = null)
                .report(
                        ".*process 1 \\(.*\\) failed: .*has no loss.*",
                        "java.lang.IllegalArgumentException: .*");
        add("what all refuse", setup -> {})
                .both(setup -> setup.sixth = column(1))
                .report("java.lang.IllegalArgumentException: .*cannot be cut over 2 ranks.*");
        add("nothing", setup -> {}).report("trained, sum .*");
    }

    private static Optimizer steps(int last) {
        int[] steps = {1, last};
        Tracker tracker = Tracker.multiFactor().setBaseValue(0.1f).setSteps(steps).build();
        return Optimizer.sgd().setLearningRateTracker(tracker).build();
    }

    private static Optimizer cycles(CyclicalMode mode) {
        Tracker tracker = CyclicalTracker.builder().optMode(mode).build();
        return Optimizer.sgd().setLearningRateTracker(tracker).build();
    }

    /** All in one job, which goes on. */
    @BeforeClass(timeOut = 120_000)
    public void run() throws Exception {
        List<List<String>> reports =
                ThreadedJob.run(
                        job -> {
                            List<String> own = new ArrayList<>();
                            for (Row row : ROWS.values()) {
                                Setup setup = new Setup();
                                row.both.accept(setup);
                                if (job.getProcess() == 1) {
                                    row.other.accept(setup);
                                }
                                own.add(setup.train(job));
                            }
                            return own;
                        });
        int number = 0;
        for (Row row : ROWS.values()) {
            row.reports = List.of(reports.get(0).get(number), reports.get(1).get(number++));
        }
    }

    @DataProvider
    public Object[][] names() {
        return TrainerKind.rows(ROWS.keySet());
    }

    @Test(dataProvider = "names")
    public void report(String name) {
        Row row = ROWS.get(name);
        for (int i = 0; i < 2; i++) {
            String report = row.reports.get(i).replace('\n', ' ');
            assertTrue(report.matches(row.expected[i % row.expected.length]), report);
        }
        if (row.expected[0].startsWith("trained")) {
            assertEquals(row.reports.get(1), row.reports.get(0));
        }
        if (name.equals("units")) { // a loaded model is as it was: nothing had been handed out
            String report = row.reports.get(0);
            float sum = Float.parseFloat(report.substring(report.lastIndexOf(' ') + 1));
            assertTrue(Float.isFinite(sum) && sum != 0, report);
        }
    }
}
