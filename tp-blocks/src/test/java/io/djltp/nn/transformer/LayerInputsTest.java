package io.djltp.nn.transformer;

import static io.djltp.testing.Blocks.column;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.mlp;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainerKind.TENSOR_2;

import ai.djl.Model;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.norm.LayerNorm;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.ParameterStore;
import ai.djl.training.Trainer;

import io.djltp.nn.attention.ParallelMultiHeadAttention;
import io.djltp.nn.norm.RmsNorm;
import io.djltp.testing.Blocks;
import io.djltp.testing.Configs;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Network;
import io.djltp.testing.Refusals;
import io.djltp.testing.TrainerKind;

import org.testng.annotations.Test;

import java.util.function.Supplier;

/** Inputs that a layer of a transformer is not for: one error each, on ranks and without. */
public class LayerInputsTest {

    private static final TrainerKind[] KINDS = {PLAIN, TENSOR_2, DATA_2, MESH_2X2};

    private static void assertRefused(Supplier<Block> block, String... parts) {
        for (TrainerKind kind : KINDS) {
            try (Model model = Blocks.model(block.get())) {
                DefaultTrainingConfig config = Configs.of(new HalfSquareLoss());
                try (Trainer trainer = kind.open(model, config)) {
                    Refusals.throwsArgument(() -> trainer.initialize(new Shape(3, 5, 10)), parts);
                }
            }
        }
    }

    /** The attention takes any input; what it gives could not be added to it. */
    @Test(timeOut = 60_000)
    public void aWidthThatIsNotThatOfTheInput() {
        String[] parts = {
            "output of ParallelMultiHeadAttention", "it has 12 features", "(3, 5, 10), has 10"
        };
        assertRefused(() -> ParallelTransformerEncoderLayer.bert(12, 3, 20, 0), parts);
    }

    /** An MLP of other units than the attention's. */
    @Test(timeOut = 60_000)
    public void unitsThatAreNotTheWidth() {
        assertRefused(() -> decoder(false, 9), "output of ParallelMlp", "it has 9 features");
    }

    @Test(timeOut = 60_000)
    public void aDecoderLayerWithoutItsMemory() {
        assertRefused(() -> decoder(true, 10), "needs two inputs", "without optCrossAttention");
        try (NDManager manager = NDManager.newBaseManager()) {
            Block layer = decoder(true, 10);
            Shape x = new Shape(3, 5, 10);
            layer.initialize(manager, DataType.FLOAT32, x, x);
            NDList one = new NDList(manager.ones(x));
            Refusals.throwsArgument(
                    () -> layer.forward(new ParameterStore(manager, false), one, false),
                    "needs two inputs");
        }
    }

    /** A later input, and a rank's slice. */
    @Test(timeOut = 60_000)
    public void featuresThatAreNotThoseOfRmsNorm() {
        try (NDManager manager = NDManager.newBaseManager()) {
            Block norm = RmsNorm.builder().build();
            norm.initialize(manager, DataType.FLOAT32, new Shape(3, 24));
            NDList later = new NDList(manager.ones(new Shape(3, 25)));
            Refusals.throwsArgument(
                    () -> norm.forward(new ParameterStore(manager, false), later, false),
                    "RmsNorm of 24 features",
                    "(3, 25)");
        }
        Network.of(
                        cut -> sequence(column(cut, 8), RmsNorm.builder().build(), linear(4)),
                        HalfSquareLoss::new,
                        Network.regression(6, 5, 4))
                .assertRefused(KINDS[1], "RmsNorm of 8 features", "optGatherOutput(true)");
    }

    private static Block decoder(boolean crossed, long units) {
        ParallelTransformerDecoderLayer.Builder builder =
                ParallelTransformerDecoderLayer.builder()
                        .setAttention(attention(false))
                        .setMlp(mlp(units, 8).build())
                        .setNorm(() -> LayerNorm.builder().axis(2).build());
        if (crossed) {
            builder.optCrossAttention(attention(true));
        }
        return builder.build();
    }

    private static ParallelMultiHeadAttention attention(boolean crossed) {
        return Blocks.attention(10, 2).optCausal(!crossed).optCrossAttention(crossed).build();
    }
}
