package io.djltp.training;

import static io.djltp.testing.Blocks.sequence;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;

import io.djltp.head.LossOptions;
import io.djltp.layout.ParallelMode;
import io.djltp.nn.ClassificationHead;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

/** What a fused head cannot compute ends in one error, and the weights are as they were. */
public class FusedHeadBadInputTest {

    @DataProvider
    public Object[][] kinds() {
        return TrainerKind.parallel(1, 2);
    }

    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void aLabelThatIsNoClass(TrainerKind kind) {
        String message = failure(kind, 1 << 20, Float.NaN, FusedTraining.CLASSES);
        Assert.assertTrue(
                message.contains("The label of row 0 is 23, but the labels of 23 classes"),
                message);
    }

    @Test(timeOut = 60_000)
    public void featuresThatAreNoNumbers() {
        for (int ranks = 1; ranks <= 2; ranks++) {
            TrainerKind kind = new TrainerKind(ParallelMode.TENSOR, ranks);
            String message = failure(kind, 1 << 20, Float.POSITIVE_INFINITY, 0);
            Assert.assertTrue(
                    message.matches(
                            "(?s).*The features hold NaN or infinite values on rank \\d in step 2.*"),
                    message);
        }
    }

    /** Names the bytes that are needed. */
    @Test(timeOut = 60_000)
    public void aBudgetThatIsTooSmall() {
        String message = failure(new TrainerKind(ParallelMode.TENSOR, 1), 100, 0, 0);
        Assert.assertTrue(message.contains("23 classes take 736 bytes"), message);
    }

    /** Does a good step and then a bad one. */
    private static String failure(TrainerKind kind, long budget, float feature, long label) {
        Block block = FusedTraining.network(head -> head.optFusedLoss(true).optFusedMemory(budget));
        String[] message = new String[1];
        FusedTraining.use(
                kind,
                block,
                (trainer, manager) -> {
                    float[] before = null;
                    try {
                        step((ParallelTrainer) trainer, manager, 0, 0);
                        before = weight((ParallelTrainer) trainer);
                        step((ParallelTrainer) trainer, manager, feature, label);
                        Assert.fail("no error");
                    } catch (RuntimeException e) {
                        message[0] = String.valueOf(e.getMessage());
                    }
                    if (before != null) {
                        Assert.assertEquals(weight((ParallelTrainer) trainer), before);
                    }
                });
        return message[0];
    }

    private static void step(ParallelTrainer trainer, NDManager manager, float x, long label) {
        NDArray data = FusedTraining.data(manager, 0);
        if (Float.isInfinite(x)) {
            data = data.mul(Float.NaN);
        }
        NDArray labels = FusedTraining.labels(manager, 0);
        if (label > 0) {
            labels.set(new ai.djl.ndarray.index.NDIndex(0), label);
        }
        TrainingRun.backward(trainer, data, labels);
        trainer.step();
    }

    private static float[] weight(ParallelTrainer trainer) {
        Parameter weight =
                trainer.getModel().getBlock().getParameters().get("03ClassificationHead_weight");
        return trainer.getParameterStore(0).getValue(weight, null, true).toFloatArray();
    }

    /** On one rank, too, it is not the number of features that is wrong. */
    @Test(timeOut = 60_000)
    public void aHeadBehindAHead() {
        for (int ranks = 1; ranks <= 2; ranks++) {
            Block block =
                    sequence(
                            FusedTraining.network(head -> head.optFusedLoss(true)),
                            ClassificationHead.builder().setUnits(5).build());
            String message = refusal(ranks, block, FusedTraining.loss(LossOptions.DEFAULT));
            Assert.assertTrue(
                    message.contains("a fused head whose logits are never computed"), message);
        }
    }

    /** What a fused head hands on are its features: no slice of the classes. */
    @Test(timeOut = 60_000)
    public void aLossThatNeedsLogits() {
        for (int ranks = 1; ranks <= 2; ranks++) {
            Block block = FusedTraining.network(head -> head.optFusedLoss(true));
            String message = refusal(ranks, block, Loss.softmaxCrossEntropyLoss());
            Assert.assertTrue(
                    message.contains("a fused head never computes")
                            && message.contains("Use VocabParallelCrossEntropyLoss")
                            && !message.contains("slice"),
                    message);
        }
    }

    private static String refusal(int ranks, Block block, Loss loss) {
        String[] message = new String[1];
        FusedTraining.use(
                new TrainerKind(ParallelMode.TENSOR, ranks),
                block,
                loss,
                FusedTraining.sgd(),
                (trainer, manager) ->
                        message[0] =
                                Assert.expectThrows(
                                                IllegalArgumentException.class,
                                                () ->
                                                        step(
                                                                (ParallelTrainer) trainer,
                                                                manager,
                                                                0,
                                                                0))
                                        .getMessage());
        return message[0];
    }

    @Test(timeOut = 60_000)
    public void anOptimizerThatIsNotKnown() {
        Optimizer unknown =
                new Optimizer(new Builder()) {
                    @Override
                    public void update(String id, NDArray weight, NDArray gradient) {}
                };
        try {
            FusedTraining.run(
                    new TrainerKind(ParallelMode.TENSOR, 1),
                    FusedTraining.network(head -> head.optFusedLoss(true)),
                    FusedTraining.loss(LossOptions.DEFAULT),
                    unknown);
            Assert.fail("no error");
        } catch (RuntimeException e) {
            Assert.assertTrue(
                    e.getMessage().contains("Sgd, Adam, AdamW, Adagrad or RowwiseAdagrad"));
        }
    }

    /** A builder of DJL's. */
    private static final class Builder extends Optimizer.OptimizerBuilder<Builder> {
        @Override
        protected Builder self() {
            return this;
        }
    }
}
