package io.djltp.conformance;

import static io.djltp.testing.TrainerKind.PLAIN;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.util.Pair;

import io.djltp.testing.Configs;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import java.lang.reflect.Field;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * A training of a case.
 *
 * @param drawn the case
 * @param kind the trainer
 * @param type the type of the parameters
 * @param lastBits which last bits of the parameters and the data are changed, or 0: none
 * @param initial the parameters at first, or {@code null}: those of the seed
 */
record SweptTraining(
        SweptCase drawn, TrainerKind kind, DataType type, long lastBits, List<double[]> initial) {

    static final int STEPS = 3;

    /** As the case says, under DJL's own trainer or on ranks. */
    static SweptTraining of(SweptCase drawn, TrainerKind kind) {
        return new SweptTraining(drawn, kind, drawn.type(), 0, null);
    }

    /** Returns the output, and the parameters after a step that is the gradient. */
    Map<String, double[]> gradients() {
        return run(true);
    }

    /** Returns the losses, and the parameters after three steps. */
    Map<String, double[]> steps() {
        return run(false);
    }

    private Map<String, double[]> run(boolean gradients) {
        Map<String, double[]> arrays = new LinkedHashMap<>();
        Engine.getInstance().setRandomSeed((int) drawn.seed());
        Block block = drawn.tree().create(kind.isParallel());
        setInitial(block);
        try (Model model = Model.newInstance("net", Device.cpu());
                NDManager manager = NDManager.newBaseManager()) {
            model.setBlock(block);
            model.setDataType(type);
            DefaultTrainingConfig config =
                    Configs.of(
                            drawn.tree().createLoss(),
                            gradients ? drawn.createGradientStep() : drawn.createOptimizer());
            try (Trainer trainer = kind.open(model, config)) {
                if (!kind.isParallel()) {
                    leaveOutCheck(trainer);
                }
                trainer.initialize(data(manager, 0).getShapes());
                if (gradients && !drawn.tree().end().classes()) {
                    arrays.put("output", doubles(trainer.evaluate(data(manager, 0)).head()));
                }
                for (int i = 0; i < (gradients ? 1 : STEPS); i++) {
                    double[] loss = doubles(backward(trainer, manager, i));
                    arrays.put("loss " + i, loss);
                    if (SweptDifference.largest(loss) > SweptComparison.DIVERGED) {
                        break; // a router refuses what is no number any more
                    }
                    trainer.step();
                }
            }
            for (Pair<String, Parameter> parameter : block.getParameters()) {
                arrays.put(parameter.getKey(), doubles(parameter.getValue().getArray()));
            }
        }
        return arrays;
    }

    private void setInitial(Block block) {
        List<Parameter> parameters = block.getParameters().values();
        for (int i = 0; initial != null && i < initial.size(); i++) {
            double[] values = new LastBits(lastBits, i).change(initial.get(i), drawn.precision());
            parameters
                    .get(i)
                    .setInitializer(
                            (manager, shape, into) ->
                                    manager.create(values, shape).toType(into, false));
        }
    }

    /** Returns the parameters that the seed gives. */
    static List<double[]> initial(SweptCase drawn) {
        Engine.getInstance().setRandomSeed((int) drawn.seed());
        Block block = drawn.tree().create(false);
        try (NDManager manager = NDManager.newBaseManager()) {
            SweptTraining plain = of(drawn, PLAIN);
            block.initialize(manager, drawn.type(), plain.data(manager, 0).getShapes());
            return block.getParameters().values().stream()
                    .map(parameter -> doubles(parameter.getArray()))
                    .toList();
        }
    }

    /**
     * DJL's trainer refuses a first step whose gradients add up to 0, as they do where no unit is
     * active and in a softmax, and cannot add up those in float64.
     */
    private static void leaveOutCheck(Trainer trainer) {
        try {
            Field checked = Trainer.class.getDeclaredField("gradientsChecked");
            checked.setAccessible(true);
            checked.setBoolean(trainer, true);
        } catch (ReflectiveOperationException e) {
            throw new AssertionError(e);
        }
    }

    private NDArray backward(Trainer trainer, NDManager manager, int step) {
        NDList labels = labels(manager, step);
        try (GradientCollector collector = trainer.newGradientCollector()) {
            NDList output = trainer.forward(data(manager, step), labels);
            NDArray loss = trainer.getLoss().evaluate(labels, output);
            collector.backward(loss);
            return loss;
        }
    }

    NDList data(NDManager manager, int step) {
        Shape shape = new Shape(drawn.rows());
        shape = drawn.tree().tokens() == 0 ? shape : shape.add(drawn.tree().tokens());
        return drawn.tree().table() != null
                ? classes(manager, step, shape, drawn.tree().table().vocabulary())
                : numbers(manager, step, shape.add(drawn.tree().features()));
    }

    NDList labels(NDManager manager, int step) {
        Shape shape = new Shape(drawn.rows());
        shape = drawn.tree().tokens() == 0 ? shape : shape.add(drawn.tree().tokens());
        long outputs = drawn.tree().end().outputs();
        return drawn.tree().end().classes()
                ? classes(manager, 50 + step, shape, (int) outputs)
                : numbers(manager, 50 + step, shape.add(outputs));
    }

    private NDList classes(NDManager manager, int number, Shape shape, int count) {
        long seed = 100 * drawn.seed() + number;
        NDArray flat = TrainingRun.labels(manager, seed, (int) shape.size(), count);
        return new NDList(flat.reshape(shape));
    }

    private NDList numbers(NDManager manager, int number, Shape shape) {
        long seed = 100 * drawn.seed() + number;
        double[] values = doubles(TrainingRun.random(manager, seed, shape.getShape()));
        values = new LastBits(lastBits, 1000 + number).change(values, drawn.precision());
        return new NDList(manager.create(values, shape).toType(type, false));
    }

    static double[] doubles(NDArray array) {
        try (NDArray wide = array.toType(DataType.FLOAT64, true)) {
            return wide.toDoubleArray();
        }
    }
}
