package io.djltp.nn.attention;

import static io.djltp.testing.Blocks.attention;
import static io.djltp.testing.TrainerKind.DATA_3;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainerKind.TENSOR_3;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.Trainer;

import io.djltp.testing.ArrayAssert;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Refusals;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

/** What does not fit is refused, with what it was, the limit and the remedy. */
public class AttentionBadInputTest {

    private static ParallelMultiHeadAttention.Builder heads(int heads) {
        return attention(12, heads);
    }

    private static RotaryEmbedding rotary(int dim) {
        return RotaryEmbedding.builder().optDim(dim).build();
    }

    @DataProvider
    public Object[][] builders() {
        return new Object[][] {
            {heads(5), "5 heads do not divide an embedding of 12 features", "optHeadDim"},
            {heads(6).optKeyValueHeads(4), "6 query heads cannot share 4", "divisor"},
            {heads(0), "1 head or more", "setHeads"},
            {heads(4).optRotary(RotaryEmbedding.builder().build()), "a head has 3", "optDim"},
            {heads(6).optRotary(rotary(4)), "4 features do not fit heads of 2", "optDim"},
            {heads(4).optCausal(true).optCrossAttention(true), "cannot be causal", "order"},
            {heads(4).optFusedQkv(true).optCrossAttention(true), "another input", "optFusedQkv"},
        };
    }

    @Test(dataProvider = "builders", timeOut = 60_000)
    public void isNotBuilt(ParallelMultiHeadAttention.Builder builder, String what, String remedy) {
        Refusals.throwsArgument(builder::build, what, remedy);
    }

    @DataProvider
    public Object[][] stacked() {
        return new Object[][] {{false}, {true}};
    }

    @Test(dataProvider = "stacked", timeOut = 60_000)
    public void moreRanksThanHeads(boolean stacked) {
        try (Model model = Model.newInstance("net", Device.cpu())) {
            model.setBlock(heads(2).optFusedQkv(stacked).build());
            try (Trainer trainer = open(TENSOR_3, model)) {
                Refusals.throwsArgument(
                        () -> trainer.initialize(new Shape(2, 4, 12)),
                        "3 ranks",
                        "2 heads",
                        "at most 2 tensor-parallel ranks");
            }
        }
    }

    @DataProvider
    public Object[][] kinds() {
        return new Object[][] {{PLAIN}, {TENSOR_2}, {MESH_2X2}};
    }

    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void aMaskOfAnotherShape(TrainerKind kind) {
        for (Shape shape :
                new Shape[] {new Shape(4, 3), new Shape(4, 1, 3, 5), new Shape(4, 4, 5, 3)}) {
            String message = refusal(kind, new Shape(4, 5, 12), shape);
            for (String part : new String[] {"An attention mask must be of shape", "5)"}) {
                Assert.assertTrue(message.contains(part), message);
            }
        }
    }

    @DataProvider
    public Object[][] kindsOfTrainers() {
        return new Object[][] {{PLAIN}, {TENSOR_2}, {DATA_3}, {MESH_2X2}};
    }

    /**
     * Numbers to be added to the scores, 0 and -10,000, are no mask of two or three axes: there
     * they would hide what is to be seen. On whichever rank the row is, training goes on.
     */
    @Test(dataProvider = "kindsOfTrainers", timeOut = 60_000)
    public void aFloatingMaskOfOtherNumbersThan0And1(TrainerKind kind) {
        TrainingRun.of(
                kind,
                heads(4).build(),
                new HalfSquareLoss(),
                new Shape(4, 5, 12),
                (trainer, manager, numbers) -> {
                    NDArray x = TrainingRun.random(manager, 1, 4, 5, 12);
                    for (Shape shape : new Shape[] {new Shape(4, 5), new Shape(4, 5, 5)}) {
                        NDArray seen = manager.ones(shape);
                        seen.set(new NDIndex("3, 0:2"), 0);
                        float[] expected = values(trainer.evaluate(new NDList(x, seen)));
                        for (float number : new float[] {-1e4f, 0.5f, Float.NaN}) {
                            NDArray mask = seen.duplicate();
                            mask.set(new NDIndex("3, 1"), number);
                            Refusals.throwsArgument(
                                    () -> trainer.evaluate(new NDList(x, mask)),
                                    "has the number " + number);
                        }
                        NDArray whole = seen.toType(DataType.INT32, true);
                        ArrayAssert.assertBitEqual(
                                values(trainer.evaluate(new NDList(x, whole))), expected, "mask");
                    }
                });
    }

    private static float[] values(NDList output) {
        return output.singletonOrThrow().toFloatArray();
    }

    private static String refusal(TrainerKind kind, Shape input, Shape mask) {
        try (Model model = Model.newInstance("net", Device.cpu())) {
            model.setBlock(heads(4).build());
            try (Trainer trainer = open(kind, model)) {
                trainer.initialize(input);
                NDArray x = trainer.getManager().ones(input);
                NDList data = new NDList(x, trainer.getManager().ones(mask));
                Throwable e =
                        Assert.expectThrows(
                                RuntimeException.class,
                                () -> {
                                    if (trainer instanceof ParallelTrainer) {
                                        trainer.forward(data, new NDList(x));
                                    } else {
                                        trainer.forward(data);
                                    }
                                });
                return String.valueOf(e.getMessage());
            }
        }
    }

    private static Trainer open(TrainerKind kind, Model model) {
        return kind.open(model, new DefaultTrainingConfig(new HalfSquareLoss()));
    }
}
