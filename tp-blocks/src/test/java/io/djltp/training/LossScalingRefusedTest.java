package io.djltp.training;

import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.training.LossScalingTest.adam;
import static io.djltp.training.LossScalingTest.config;
import static io.djltp.training.LossScalingTest.data;
import static io.djltp.training.LossScalingTest.labels;
import static io.djltp.training.LossScalingTest.network;
import static io.djltp.training.LossScalingTest.scaling;

import ai.djl.Model;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.Trainer;
import ai.djl.training.initializer.Initializer;

import io.djltp.layout.ParallelMode;
import io.djltp.rank.LossScaling;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.Refusals;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.util.List;

/** What no scale of the loss helps, and what is not trained with one. */
public class LossScalingRefusedTest {

    /** A batch that is NaN at every scale ends the training, with the weights as they were. */
    @Test(timeOut = 60_000)
    public void aNaNThatNoScaleRemovesEndsTheTraining() {
        LossScaling few = LossScaling.builder().optInitialScale(4).optLeastScale(1).build();
        TrainerKind kind = TrainerKind.mesh(2, 2).scaledBy(few);
        ScaledTraining training = adam((manager, step) -> data(manager, 0).mul(Float.NaN));
        ScaledTraining.Result before = training.run(kind, 0);
        ScaledTraining.Result after = training.run(kind, 9);
        Assert.assertEquals(after.leftOut, List.of(0, 1));
        Assert.assertTrue(after.end.getMessage().contains("loss scale of 1.0"), "" + after.end);
        Assert.assertFalse(after.hasUpdated);
        ArrayAssert.assertAllBitEqual(after.weights, before.weights, "parameter");
    }

    /** A block of the user's own that updates itself would keep the scale in its gradients. */
    @Test(timeOut = 60_000)
    public void aParticipantThatKnowsNoScaleIsRefused() {
        TrainerKind kind = new TrainerKind(ParallelMode.TENSOR, 2).scaledBy(scaling(4, 2));
        try (Model model = Model.newInstance("net");
                NDManager manager = NDManager.newBaseManager()) {
            Block centres = new ClassCentres(3, 5);
            centres.setInitializer(Initializer.ONES, Parameter.Type.OTHER);
            model.setBlock(sequence(centres, linear(4)));
            try (Trainer trainer = kind.open(model, config())) {
                trainer.initialize(LossScalingTest.INPUT);
                TrainingRun.backward(trainer, data(manager, 0), labels(manager, 0));
                Refusals.expect(
                        RuntimeException.class,
                        trainer::step,
                        "ClassCentres",
                        "StepParticipant.unscale");
            }
        }
    }

    @Test(timeOut = 60_000)
    public void weightsInFloat16AreRefused() {
        TrainerKind kind = new TrainerKind(ParallelMode.TENSOR, 2).scaledBy(scaling(4, 2));
        try (Model model = Model.newInstance("net")) {
            model.setBlock(network());
            model.setDataType(DataType.FLOAT16);
            Refusals.expect(
                    IllegalArgumentException.class,
                    () -> kind.open(model, config()),
                    "weights of net are float16");
        }
    }
}
