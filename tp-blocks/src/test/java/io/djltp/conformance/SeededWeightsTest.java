package io.djltp.conformance;

import static io.djltp.testing.Blocks.column;
import static io.djltp.testing.Blocks.linear;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.Trainer;
import ai.djl.training.loss.Loss;

import io.djltp.nn.RowParallelLinear;
import io.djltp.nn.VocabParallelEmbedding;
import io.djltp.rank.ParallelMode;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.Configs;
import io.djltp.testing.PlainEmbedding;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.function.Supplier;

/**
 * Conformance case 22: with the seed 42 the shards of any number of ranks, put together, are the
 * weight of DJL's own layer, bit for bit. Whatever the generators of the ranks would draw: ranks
 * that have drawn before draw the same.
 */
public class SeededWeightsTest {

    @DataProvider
    public Object[][] layers() {
        return new Object[][] {
            row(new Shape(2, 16), () -> column(16), () -> linear(16)),
            row(
                    new Shape(2, 16),
                    () ->
                            RowParallelLinear.builder()
                                    .setUnits(16)
                                    .optInputIsParallel(false)
                                    .build(),
                    () -> linear(16)),
            row(
                    new Shape(2, 3),
                    () ->
                            VocabParallelEmbedding.builder()
                                    .setVocabularySize(16)
                                    .setEmbeddingSize(4)
                                    .build(),
                    () -> new PlainEmbedding(16, 4))
        };
    }

    private static Object[] row(Shape input, Supplier<Block> cut, Supplier<Block> dense) {
        return new Object[] {input, cut, dense};
    }

    @Test(dataProvider = "layers", timeOut = 60_000)
    public void shardsAreSlicesOfTheWhole(Shape input, Supplier<Block> cut, Supplier<Block> dense) {
        float[] expected = weight(TrainerKind.PLAIN, dense.get(), input, false);
        for (int ranks = 1; ranks <= 4; ranks++) {
            TrainerKind kind = new TrainerKind(ParallelMode.TENSOR, ranks);
            for (boolean disturbed : new boolean[] {false, true}) {
                float[] actual = weight(kind, cut.get(), input, disturbed);
                ArrayAssert.assertBitEqual(actual, expected, ranks + " ranks");
            }
        }
    }

    /** Returns the weight; ranks may have trained something else before, with other draws. */
    private static float[] weight(TrainerKind kind, Block block, Shape input, boolean disturbed) {
        if (disturbed) {
            Engine.getInstance().setRandomSeed(kind.ranks());
            try (NDManager manager = NDManager.newBaseManager()) {
                manager.randomNormal(new Shape(7 + kind.ranks())).close();
            }
        }
        Engine.getInstance().setRandomSeed(42);
        try (Model model = Model.newInstance("net", Device.cpu())) {
            model.setBlock(block);
            DefaultTrainingConfig config = Configs.of(Loss.l2Loss());
            try (Trainer trainer = kind.open(model, config)) {
                trainer.initialize(input);
            } // which hands the shards back
            return TrainingRun.weights(block).get(0);
        }
    }
}
