package io.djltp.examples.plan;

import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.GradientCollector;
import ai.djl.training.loss.Loss;

import io.djltp.cost.ModelCost;
import io.djltp.cost.ModelCost.RankCost;
import io.djltp.examples.OptimizerName;
import io.djltp.examples.plan.PlannedModel.Planned;
import io.djltp.internal.rank.CommunicationCounter;
import io.djltp.internal.torch.Autograd;
import io.djltp.rank.DeviceMesh;
import io.djltp.rank.ParallelConfig;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import picocli.CommandLine;
import picocli.CommandLine.Model.CommandSpec;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;

/** What {@code tp plan} says of its models is what a training of them holds and communicates. */
public class PlannedModelsTest {

    private static final int BATCH = 5;
    private static final int CLASSES = 31;
    private static final OptimizerName ADAM = OptimizerName.ADAM;
    private static final OptimizerName ADAGRAD = OptimizerName.ADAGRAD;
    private static final Shape IMAGE = new Shape(3, 32, 32); // of the resnet, for less time

    @DataProvider
    public Object[][] plans() {
        List<Object[]> plans = new ArrayList<>();
        for (String model : List.of("lemmatiser", "resnet", "lm")) {
            boolean lm = model.equals("lm");
            for (String mesh : new String[] {"1x2", "1x3", "2x2"}) {
                plans.add(new Object[] {model, mesh, lm ? ADAM : ADAGRAD, false});
                if (lm) {
                    plans.add(new Object[] {model, mesh, ADAM, true});
                }
            }
            plans.add(new Object[] {model, "2x1", ADAM, lm});
        }
        plans.add(new Object[] {"lm", "1x4", ADAM, true});
        plans.add(new Object[] {"lemmatiser", "1x1", ADAGRAD, false});
        // computes forward passes: with one row of it for each text
        plans.add(new Object[] {"minilm", "1x3", null, false});
        plans.add(new Object[] {"minilm", "2x2", null, false});
        return plans.toArray(new Object[0][]);
    }

    private static Planned planned(String name, boolean cutTokens) throws IOException {
        if (name.equals("resnet")) {
            return PlannedModel.resnet(IMAGE, CLASSES, BATCH);
        }
        String line =
                switch (name) {
                    case "lm" ->
                            "--layers 2 --width 16 --heads 4 --kv-heads 2 --context 8"
                                    + (cutTokens ? " --sequence-parallel" : "");
                    case "minilm" -> "--tokens 7";
                    default -> "--classes " + CLASSES;
                };
        PlanOptions options = new PlanOptions();
        new CommandLine(CommandSpec.forAnnotatedObject(options)).parseArgs(line.split(" "));
        return PlannedModel.valueOf(name.toUpperCase(Locale.ROOT)).create(options, BATCH);
    }

    @Test(dataProvider = "plans", timeOut = 120_000)
    public void aPlanIsWhatIsMeasured(
            String name, String meshName, OptimizerName optimizer, boolean cutTokens)
            throws IOException {
        Planned planned = planned(name, cutTokens);
        DeviceMesh mesh = DeviceMesh.parse(meshName);
        boolean trained = optimizer != null;
        ModelCost.Builder builder =
                ModelCost.builder()
                        .setBlock(planned.block())
                        .setMesh(mesh)
                        .setInputs(planned.inputs())
                        .optTraining(trained);
        if (trained) {
            builder.setLoss(planned.loss()).setOptimizer(optimizer.create(0.01f));
        }
        ModelCost cost = builder.build();
        DefaultTrainingConfig config =
                new DefaultTrainingConfig(trained ? planned.loss() : Loss.l2Loss())
                        .optOptimizer((trained ? optimizer : OptimizerName.SGD).create(0.01f));
        ParallelConfig ranks = ParallelConfig.builder().setMesh(mesh).optDriftCheck(0).build();
        try (Model model = Model.newInstance(name)) {
            model.setBlock(planned.block());
            try (ParallelTrainer trainer = new ParallelTrainer(model, config, ranks)) {
                trainer.initialize(planned.inputs());
                pass(trainer, planned);
                try (CommunicationCounter counter = new CommunicationCounter(trainer.getRanks())) {
                    long[] gradients = pass(trainer, planned);
                    for (int rank = 0; rank < mesh.getRanks(); rank++) {
                        Assert.assertEquals(
                                counter.getTable(rank),
                                cost.getTraffic(rank),
                                "the traffic of " + rank);
                        Assert.assertEquals(
                                held(trainer, rank, gradients[rank]),
                                cost.getRank(rank),
                                "rank " + rank);
                    }
                }
            }
        }
    }

    /** Makes a step, or a forward pass, and returns the bytes of the gradients of each rank. */
    private static long[] pass(ParallelTrainer trainer, Planned planned) {
        Shape input = planned.inputs()[0];
        NDManager manager = trainer.getManager().newSubManager();
        long[] gradients = new long[trainer.getRanks().size()];
        if (planned.loss() == null) {
            NDArray ids = manager.ones(input, DataType.INT64);
            trainer.evaluate(new NDList(ids, ids));
            return gradients;
        }
        NDArray data =
                input.dimension() == 4
                        ? manager.randomNormal(input)
                        : manager.ones(input, DataType.INT32);
        boolean ofTokens = trainer.getModel().getName().equals("lm");
        NDArray rows = manager.arange(BATCH);
        NDList labels = new NDList(ofTokens ? rows.expandDims(1).broadcast(input) : rows);
        try (GradientCollector collector = trainer.newGradientCollector()) {
            NDList output = trainer.forward(new NDList(data), labels);
            collector.backward(trainer.getLoss().evaluate(labels, output));
        }
        for (int rank = 0; rank < gradients.length; rank++) {
            for (Parameter parameter : parameters(trainer)) {
                NDArray value = trainer.getParameterStore(rank).getValue(parameter, null, true);
                try (NDArray gradient = Autograd.gradient(value)) {
                    gradients[rank] += gradient == null ? 0 : bytes(gradient);
                }
            }
        }
        trainer.step();
        return gradients;
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
        return trainer.getModel().getBlock().getParameters().values().stream().distinct().toList();
    }

    private static long bytes(NDArray array) {
        return array.size() * array.getDataType().getNumOfBytes();
    }
}
