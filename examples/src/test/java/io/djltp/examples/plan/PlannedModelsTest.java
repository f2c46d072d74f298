package io.djltp.examples.plan;

import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.GradientCollector;

import io.djltp.cost.ModelCost;
import io.djltp.cost.RankCost;
import io.djltp.examples.OptimizerName;
import io.djltp.rank.CommunicationCounter;
import io.djltp.rank.DeviceMesh;
import io.djltp.rank.ParallelConfig;
import io.djltp.torch.Autograd;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.List;

/** What {@code tp plan} says of its models is what a training of them holds and communicates. */
public class PlannedModelsTest {

    private static final int BATCH = 5;
    private static final int CLASSES = 31;
    private static final Shape IMAGE = new Shape(3, 32, 32); // of the resnet, for less time

    @DataProvider
    public Object[][] plans() {
        List<Object[]> plans = new ArrayList<>();
        for (PlannedModel model : PlannedModel.ALL) {
            for (String mesh : new String[] {"1x1", "1x2", "1x3", "2x2"}) {
                plans.add(new Object[] {model.getName(), mesh, OptimizerName.ADAGRAD});
            }
            plans.add(new Object[] {model.getName(), "2x1", OptimizerName.ADAM});
        }
        return plans.toArray(new Object[0][]);
    }

    @Test(dataProvider = "plans", timeOut = 120_000)
    public void aPlanIsWhatIsMeasured(String name, String meshName, OptimizerName optimizer) {
        PlannedModel planned =
                PlannedModel.ALL.stream()
                        .filter(each -> each.getName().equals(name))
                        .findFirst()
                        .orElseThrow();
        boolean resnet = planned instanceof ResnetModel;
        Block block = resnet ? ResnetModel.create(IMAGE, CLASSES) : planned.create(CLASSES);
        Shape input = resnet ? new Shape(BATCH).addAll(IMAGE) : planned.inputs(BATCH)[0];
        DeviceMesh mesh = DeviceMesh.parse(meshName);
        ModelCost cost =
                ModelCost.builder()
                        .setBlock(block)
                        .setMesh(mesh)
                        .setInputs(input)
                        .setLoss(planned.loss())
                        .setOptimizer(optimizer.create(0.01f))
                        .build();
        try (Model model = Model.newInstance(name)) {
            model.setBlock(block);
            DefaultTrainingConfig config =
                    new DefaultTrainingConfig(planned.loss()).optOptimizer(optimizer.create(0.01f));
            ParallelConfig ranks = ParallelConfig.builder().setMesh(mesh).optDriftCheck(0).build();
            try (ParallelTrainer trainer = new ParallelTrainer(model, config, ranks)) {
                trainer.initialize(input);
                NDManager manager = trainer.getManager().newSubManager();
                NDArray data =
                        resnet ? manager.randomNormal(input) : manager.ones(input, DataType.INT32);
                step(trainer, data, null, cost);
                try (CommunicationCounter counter = new CommunicationCounter(trainer.getRanks())) {
                    step(trainer, data, counter, cost);
                }
            }
        }
    }

    private static void step(
            ParallelTrainer trainer, NDArray data, CommunicationCounter counter, ModelCost cost) {
        NDList labels = new NDList(data.getManager().arange(BATCH));
        try (GradientCollector collector = trainer.newGradientCollector()) {
            NDList output = trainer.forward(new NDList(data), labels);
            collector.backward(trainer.getLoss().evaluate(labels, output));
        }
        int ranks = trainer.getRanks().size();
        long[] gradients = new long[ranks];
        for (int rank = 0; rank < ranks; rank++) {
            for (Parameter parameter : parameters(trainer)) {
                NDArray value = trainer.getParameterStore(rank).getValue(parameter, null, true);
                try (NDArray gradient = Autograd.gradient(value)) {
                    gradients[rank] += gradient == null ? 0 : bytes(gradient);
                }
            }
        }
        trainer.step();
        for (int rank = 0; counter != null && rank < ranks; rank++) {
            Assert.assertEquals(
                    counter.getTable(rank), cost.getTraffic(rank), "the traffic of " + rank);
            Assert.assertEquals(
                    held(trainer, rank, gradients[rank]), cost.getRank(rank), "rank " + rank);
        }
    }

    private static RankCost held(ParallelTrainer trainer, int rank, long gradients) {
        long weights = 0;
        long state = 0;
        for (Parameter parameter : parameters(trainer)) {
            weights += bytes(trainer.getParameterStore(rank).getValue(parameter, null, true));
        }
        try (NDManager manager = trainer.getManager().newSubManager()) {
            for (String name : trainer.getOptimizerState(rank).getNames()) {
                for (NDArray kept : trainer.getOptimizerState(rank).get(name, manager).values()) {
                    state += bytes(kept);
                }
            }
        }
        return new RankCost(weights, gradients, state);
    }

    private static List<Parameter> parameters(ParallelTrainer trainer) {
        return trainer.getModel().getBlock().getParameters().values();
    }

    private static long bytes(NDArray array) {
        return array.size() * array.getDataType().getNumOfBytes();
    }
}
