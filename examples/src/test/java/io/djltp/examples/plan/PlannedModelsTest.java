package io.djltp.examples.plan;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.optimizer.Optimizer;

import io.djltp.cost.ModelCost;
import io.djltp.examples.OptimizerName;
import io.djltp.examples.plan.PlannedModel.Planned;
import io.djltp.rank.DeviceMesh;
import io.djltp.testing.CountedStep;

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
        Optimizer rule = (trained ? optimizer : OptimizerName.SGD).create(0.01f);
        CountedStep step =
                CountedStep.run(
                        planned.block(),
                        planned.loss(),
                        rule,
                        mesh,
                        false,
                        manager -> batch(manager, planned.inputs()[0], name.equals("lm")));
        for (int rank = 0; rank < mesh.getRanks(); rank++) {
            Assert.assertEquals(step.table(rank), cost.getTraffic(rank), "traffic of " + rank);
            Assert.assertEquals(step.cost(rank), cost.getRank(rank), "rank " + rank);
        }
    }

    private static NDList batch(NDManager manager, Shape input, boolean ofTokens) {
        NDArray data =
                input.dimension() == 4
                        ? manager.randomNormal(input)
                        : manager.ones(input, DataType.INT32);
        NDArray rows = manager.arange(BATCH);
        return new NDList(data, ofTokens ? rows.expandDims(1).broadcast(input) : rows);
    }
}
