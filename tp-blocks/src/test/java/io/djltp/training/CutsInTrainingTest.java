package io.djltp.training;

import static io.djltp.testing.ArrayAssert.assertClose;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Refusals.expect;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainingRun.backward;
import static io.djltp.testing.TrainingRun.random;
import static io.djltp.testing.TrainingRun.weights;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.inference.Predictor;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.Trainer;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;
import ai.djl.translate.NoopTranslator;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.layout.ParallelMode;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.ParallelDropout;
import io.djltp.nn.RowParallelLinear;
import io.djltp.optimizer.RowwiseAdagrad;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.RankFailedException;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.testing.Configs;
import io.djltp.testing.CutNetwork;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.TrainerKind;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/** What else depends on a cut: saved files, the check of replicas, optimizers, dropout. */
public class CutsInTrainingTest {

    private static final int ROWS = 6;
    private static final double TOLERANCE = 5e-6;

    @DataProvider
    public Object[][] networks() {
        List<Object[]> cases = new ArrayList<>();
        for (CutNetwork network : CutNetwork.values()) {
            cases.add(new Object[] {network, 2});
            cases.add(new Object[] {network, 3});
        }
        return cases.toArray(new Object[0][]);
    }

    /** Saved while it is trained, and loaded by plain DJL, and the other way round. */
    @Test(dataProvider = "networks", timeOut = 60_000)
    public void whatIsSavedIsAPlainModel(CutNetwork network, int ranks) throws Exception {
        Path folder = Files.createTempDirectory("cuts");
        TrainerKind kind = new TrainerKind(ParallelMode.TENSOR, ranks);
        try {
            float[] expected;
            try (Model plain = model(network.create(0))) {
                train(PLAIN, plain, sgd(), 0, 2);
                plain.save(folder, "plain");
                train(PLAIN, plain, sgd(), 2, 4);
                expected = predict(plain);
            }
            try (Model cut = model(network.create(ranks))) {
                cut.load(folder, "plain");
                Engine.getInstance().setRandomSeed(1);
                try (Trainer trainer =
                        kind.open(cut, config(sgd()), new Shape(ROWS, CutNetwork.FEATURES))) {
                    steps(trainer, 2, 4);
                    cut.save(folder, "open");
                }
                assertClose(predict(cut), expected, TOLERANCE, "in the model");
            }
            try (Model plain = model(network.create(0))) {
                plain.load(folder, "open");
                assertClose(predict(plain), expected, TOLERANCE, "in the file");
            }
        } finally {
            try (var files = Files.list(folder)) {
                for (Path file : files.toList()) {
                    Files.delete(file);
                }
            }
            Files.delete(folder);
        }
    }

    /** One number for each row of a weight, whose columns are cut unevenly or in many ranges. */
    @Test(dataProvider = "networks", timeOut = 60_000)
    public void rowwiseAdagrad(CutNetwork network, int ranks) throws Exception {
        List<List<float[]>> weights = new ArrayList<>();
        for (int size : new int[] {1, ranks}) {
            try (Model model = model(network.create(size))) {
                Optimizer optimizer =
                        RowwiseAdagrad.builder()
                                .optLearningRateTracker(Tracker.fixed(0.1f))
                                .build();
                train(new TrainerKind(ParallelMode.TENSOR, size), model, optimizer, 0, 4);
                weights.add(weights(model.getBlock()));
            }
        }
        for (int i = 0; i < weights.get(0).size(); i++) {
            assertClose(weights.get(1).get(i), weights.get(0).get(i), 2e-5, "parameter " + i);
        }
    }

    /** A rank that has changed what another one has too. */
    @Test(timeOut = 60_000)
    public void replicatedRangesThatDriftApart() {
        try (Model model = model(CutNetwork.STACKED_QUERIES.create(4))) {
            ParallelConfig config =
                    ParallelConfig.builder()
                            .setMode(ParallelMode.TENSOR)
                            .setRanks(4)
                            .optDriftCheck(1)
                            .build();
            ParallelTrainer trainer = new ParallelTrainer(model, config(sgd()), config);
            try {
                trainer.initialize(new Shape(ROWS, CutNetwork.FEATURES));
                steps(trainer, 0, 2);
                Parameter weight = model.getBlock().getParameters().valueAt(0);
                trainer.getRanks()
                        .run(
                                context -> {
                                    if (context.getRank() == 3) { // the key head's rows
                                        trainer.getParameterStore(3)
                                                .getValue(weight, null, true)
                                                .get("5:6, 0:1")
                                                .stopGradient()
                                                .addi(1e-3f);
                                    }
                                    return null;
                                });
                expect(
                        RankFailedException.class,
                        () -> steps(trainer, 2, 3),
                        "rank 3 has other",
                        "20 to 24 of axis 0",
                        "rank 2");
            } finally {
                trainer.close();
            }
        }
    }

    /** Masks follow the place of a feature in the whole, whatever rank has it. */
    @Test(timeOut = 60_000)
    public void dropoutOfRangesAndReplicas() throws Exception {
        for (int ranks = 2; ranks <= 3; ranks++) {
            int size = ranks;
            Cut ranges =
                    Cut.of(
                            12,
                            size,
                            rank -> {
                                ShardRange own = Cut.balanced(6, size).getRange(rank);
                                return List.of(new ShardRange(6 + own.start(), own.length()), own);
                            });
            assertSameDropout(size, ranges);
        }
    }

    private static void assertSameDropout(int ranks, Cut cut) throws Exception {
        List<List<float[]>> weights = new ArrayList<>();
        for (int size : new int[] {1, ranks}) {
            Cut used = size == 1 ? Cut.ofLengths(12) : cut;
            Block block =
                    sequence(
                            ColumnParallelLinear.builder()
                                    .setUnits(12)
                                    .optShardingStrategy(ShardingStrategy.rowwise(used))
                                    .build(),
                            ParallelDropout.builder().optRate(0.4f).optSeed(4).build(),
                            RowParallelLinear.builder()
                                    .setUnits(CutNetwork.OUTPUTS)
                                    .optShardingStrategy(ShardingStrategy.columnwise(used))
                                    .build());
            try (Model model = model(block)) {
                train(new TrainerKind(ParallelMode.TENSOR, size), model, sgd(), 0, 3);
                weights.add(weights(block));
            }
        }
        for (int i = 0; i < weights.get(0).size(); i++) {
            assertClose(weights.get(1).get(i), weights.get(0).get(i), TOLERANCE, "parameter " + i);
        }
    }

    private static Optimizer sgd() {
        return Configs.sgd(0.1f);
    }

    private static DefaultTrainingConfig config(Optimizer optimizer) {
        return Configs.of(new HalfSquareLoss(), optimizer);
    }

    private static Model model(Block block) {
        Engine.getInstance().setRandomSeed(8);
        Model model = Model.newInstance("net", Device.cpu());
        model.setBlock(block);
        return model;
    }

    private static void train(
            TrainerKind kind, Model model, Optimizer optimizer, int from, int to) {
        try (Trainer trainer =
                kind.open(model, config(optimizer), new Shape(ROWS, CutNetwork.FEATURES))) {
            steps(trainer, from, to);
        }
    }

    private static void steps(Trainer trainer, int from, int to) {
        try (NDManager manager = NDManager.newBaseManager()) {
            for (int i = from; i < to; i++) {
                NDArray data = random(manager, i, ROWS, CutNetwork.FEATURES);
                NDArray labels = random(manager, 50 + i, ROWS, CutNetwork.OUTPUTS);
                backward(trainer, data, labels);
                trainer.step();
            }
        }
    }

    private static float[] predict(Model model) throws Exception {
        try (NDManager manager = NDManager.newBaseManager();
                Predictor<NDList, NDList> predictor = model.newPredictor(new NoopTranslator())) {
            NDArray data = random(manager, 99, ROWS, CutNetwork.FEATURES);
            return predictor.predict(new NDList(data)).head().toFloatArray();
        }
    }
}
