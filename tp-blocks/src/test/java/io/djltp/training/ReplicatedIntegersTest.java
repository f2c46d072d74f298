package io.djltp.training;

import static io.djltp.testing.Blocks.first;
import static io.djltp.testing.Blocks.frozen;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.tanh;

import static org.testng.Assert.assertEquals;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.ParameterStore;
import ai.djl.util.PairList;

import io.djltp.job.Job;
import io.djltp.layout.ParallelMode;
import io.djltp.rank.ParallelConfig;
import io.djltp.testing.Configs;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.ThreadedJob;

import org.testng.annotations.Test;

import java.util.List;

/** Integers and booleans of a network are those of the first process on all of them. */
public class ReplicatedIntegersTest {

    private static final Shape INPUT = new Shape(6, 4);

    /** A table of numbers that are not trained. */
    private static final class Table extends AbstractBlock {

        private final Parameter numbers =
                addParameter(
                        Parameter.builder()
                                .setName("numbers")
                                .setType(Parameter.Type.OTHER)
                                .optRequiresGrad(false)
                                .build());

        @Override
        protected NDList forwardInternal(
                ParameterStore store,
                NDList inputs,
                boolean training,
                PairList<String, Object> params) {
            NDArray x = inputs.singletonOrThrow();
            NDArray held = store.getValue(numbers, x.getDevice(), training);
            try (NDArray values = held.toType(DataType.FLOAT32, true)) {
                return new NDList(x.add(values));
            }
        }

        @Override
        public Shape[] getOutputShapes(Shape[] inputShapes) {
            return inputShapes;
        }
    }

    /** Processes that have loaded other integers than the first have its integers from then on. */
    @Test(timeOut = 60_000)
    public void integersAreThoseOfTheFirstProcess() throws Exception {
        for (DataType type : new DataType[] {DataType.INT32, DataType.INT64, DataType.BOOLEAN}) {
            List<float[]> tables =
                    ThreadedJob.run(
                            job -> {
                                Table table = new Table();
                                try (Model model = Model.newInstance("table", Device.cpu())) {
                                    model.setBlock(sequence(table, linear(3)));
                                    float[] own = {1, job.getProcess(), 0, 1};
                                    table.numbers.setArray(
                                            model.getNDManager().create(own).toType(type, true));
                                    ParallelConfig ranks = config(job, ParallelMode.DATA);
                                    try (ParallelTrainer trainer =
                                            new ParallelTrainer(model, config(), ranks)) {
                                        trainer.initialize(INPUT);
                                        return trainer.getParameterStore(0)
                                                .getValue(table.numbers, Device.cpu(), false)
                                                .toType(DataType.FLOAT32, true)
                                                .toFloatArray();
                                    }
                                }
                            });
            for (float[] table : tables) {
                assertEquals(table, new float[] {1, 0, 0, 1}, "" + type);
            }
        }
    }

    private static ParallelConfig config(Job job, ParallelMode mode) {
        return ParallelConfig.builder().setMode(mode).setRanks(2).optJob(job).build();
    }

    private static Model model(boolean frozen) {
        Engine.getInstance().setRandomSeed(3);
        Model model = Model.newInstance("net", Device.cpu());
        Block body = linear(5);
        model.setBlock(sequence(body, tanh(), first(true, 7), tanh(), row(true, 3)));
        if (frozen) {
            frozen(body);
        }
        return model;
    }

    private static DefaultTrainingConfig config() {
        return Configs.of(new HalfSquareLoss());
    }
}
