package io.djltp.checkpoint;

import static io.djltp.testing.TrainerKind.DATA_2;

import ai.djl.Device;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Parameter;
import ai.djl.training.ParameterStore;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.util.PairList;

import io.djltp.exchange.NameMapping;
import io.djltp.exchange.WeightExport;
import io.djltp.internal.safetensors.SafetensorsFile;
import io.djltp.testing.TrainingRun;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.nio.file.Path;
import java.util.List;
import java.util.Set;

/** A parameter may be called as an array of the optimizer is. */
public class StateNamesTest {

    private static final StoppedRun.Task TASK =
            new StoppedRun.Task(
                    Affine::new,
                    Loss::l2Loss,
                    () -> Optimizer.adam().build(),
                    (manager, step) -> TrainingRun.random(manager, step, 6, 5),
                    (manager, step) -> TrainingRun.random(manager, 50 + step, 6, 5));

    /** y = x w + w/mean: Adam keeps a mean of w, too. */
    private static final class Affine extends AbstractBlock {

        private final Parameter factor = parameter("w");
        private final Parameter offset = parameter("w/mean");

        private Parameter parameter(String name) {
            return addParameter(
                    Parameter.builder().setName(name).setType(Parameter.Type.WEIGHT).build());
        }

        @Override
        protected void prepare(Shape[] inputs) {
            factor.setShape(new Shape(1, inputs[0].get(1)));
            offset.setShape(new Shape(1, inputs[0].get(1)));
        }

        @Override
        protected NDList forwardInternal(
                ParameterStore store, NDList inputs, boolean training, PairList<String, Object> p) {
            Device device = inputs.head().getDevice();
            return new NDList(
                    inputs.head()
                            .mul(store.getValue(factor, device, training))
                            .add(store.getValue(offset, device, training)));
        }

        @Override
        public Shape[] getOutputShapes(Shape[] inputs) {
            return inputs;
        }
    }

    @Test(timeOut = 60_000)
    public void aParameterCalledAsAStateIsSavedAndResumed() {
        StoppedRun.assertResumes(DATA_2, TASK, 4, 2);
    }

    /** A slash does not make it something that the optimizer keeps. */
    @Test(timeOut = 60_000)
    public void aParameterCalledAsAStateIsExported() {
        StoppedRun.inFolder(
                root -> {
                    StoppedRun.saved(DATA_2, TASK, List.of(2), root.resolve("run"));
                    try (CheckpointFolder folder = CheckpointFolder.open(root.resolve("run"));
                            Checkpoint checkpoint = folder.openStep(2);
                            NDManager manager = NDManager.newBaseManager()) {
                        Path file =
                                WeightExport.builder()
                                        .setMapping(NameMapping.own())
                                        .build()
                                        .write(checkpoint, root.resolve("out"));
                        try (SafetensorsFile weights = SafetensorsFile.open(file)) {
                            Assert.assertEquals(
                                    weights.getTensors().keySet(), Set.of("w", "w/mean"));
                            Assert.assertEquals(
                                    weights.read("w/mean", manager),
                                    checkpoint.read("w/mean", manager));
                        }
                    }
                });
    }
}
