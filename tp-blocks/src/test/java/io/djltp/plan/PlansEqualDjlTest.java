package io.djltp.plan;

import ai.djl.MalformedModelException;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.nn.transformer.BertBlock;
import ai.djl.training.loss.Loss;

import io.djltp.layout.ParallelMode;
import io.djltp.testing.Network;
import io.djltp.testing.TrainerKind;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.util.stream.Stream;

/**
 * Models that a plan makes parallel are trained as by DJL's own trainer without the plan, their
 * files load where there is no plan, and they become DJL's blocks again.
 */
public class PlansEqualDjlTest {

    @DataProvider
    public static Object[][] models() {
        Plan bert =
                Plan.builder()
                        .add("*Bert*", Style.bert())
                        .add("Linear", Style.row().scatterInput())
                        .build();
        return Stream.of(
                        PlanCase.of(
                                "ResNet",
                                PlannedNetworks::resnet,
                                Plan.of("Linear", Style.column().gatherOutput()),
                                PlannedNetworks.images(4),
                                PlanCase.TENSOR_2,
                                PlanCase.TENSOR_3),
                        PlanCase.of(
                                "Bert",
                                () -> PlannedNetworks.bert(PlannedNetworks.small(), false),
                                bert,
                                PlannedNetworks.sentences(4),
                                PlanCase.TENSOR_2,
                                PlanCase.TENSOR_3),
                        PlanCase.of(
                                "custom",
                                () -> new PlannedNetworks.Residual(6, PlannedNetworks.CLASSES),
                                PlannedNetworks.residualPlan(),
                                Network.classification(5, 6, PlannedNetworks.CLASSES),
                                PlanCase.TENSOR_2,
                                PlanCase.TENSOR_3,
                                new TrainerKind(ParallelMode.TENSOR, 4),
                                new TrainerKind(ParallelMode.DATA, 2),
                                TrainerKind.mesh(2, 2)))
                .map(each -> new Object[] {each})
                .toArray(Object[][]::new);
    }

    @Test(dataProvider = "models", timeOut = 120_000)
    public void areTrainedAsByDjl(PlanCase model) {
        model.assertTrainedAsByDjl();
    }

    @Test(dataProvider = "models", timeOut = 120_000)
    public void keepTheirValuesThereAndBack(PlanCase model)
            throws IOException, MalformedModelException {
        model.assertKeepsItsValuesThereAndBack();
    }

    /**
     * The preset that DJL has, by the plan that needs no names, at a rate at which rounding stays.
     */
    @Test(timeOut = 120_000)
    public void aPresetOfBertIsMadeParallelByItself() {
        train(PlanCase.TENSOR_3, true)
                .assertSame("BERT nano", train(TrainerKind.PLAIN, false), 1e-5);
    }

    private static PlanTraining train(TrainerKind kind, boolean parallel) {
        Block block = PlannedNetworks.bert(BertBlock.builder().nano(), false);
        if (parallel) {
            TensorParallel.parallelize(block, Plan.auto());
        }
        return PlanTraining.of(kind, block, PlannedNetworks.sentences(4), 0.001f);
    }

    @Test(timeOut = 60_000)
    public void aSequenceIsMadeParallelByItself() {
        Network.of(
                        cut -> {
                            SequentialBlock block =
                                    new SequentialBlock()
                                            .add(Linear.builder().setUnits(9).build())
                                            .add(Activation.tanhBlock())
                                            .add(Linear.builder().setUnits(5).build())
                                            .add(Activation.reluBlock())
                                            .add(Linear.builder().setUnits(3).build());
                            return cut ? TensorParallel.parallelize(block, Plan.auto()) : block;
                        },
                        Loss::l2Loss,
                        Network.regression(4, 6, 3))
                .assertEqual(PlanCase.TENSOR_2, PlanCase.TENSOR_3, TrainerKind.mesh(2, 2));
    }
}
