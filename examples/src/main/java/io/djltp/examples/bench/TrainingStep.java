package io.djltp.examples.bench;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;

import io.djltp.layout.ParallelMode;
import io.djltp.rank.ParallelConfig;
import io.djltp.training.ParallelTrainer;

/**
 * The step of a training: forward pass, loss, backward pass, update. The batch is the same at every
 * step, and the same for both sides.
 */
final class TrainingStep implements Measured {

    private static final int SEED = 7;
    private static final int NGRAMS = 96; // the most of a word of the lemmatiser
    // hardly any: once it knows the batch by heart, gradients are denormal numbers, which take
    // longer
    private static final float RATE = 1e-5f;

    private final Model model;
    private final Trainer trainer;
    private final NDManager manager;
    private final NDArray data;
    private final NDArray labels;

    /**
     * Makes everything ready.
     *
     * @param task the task
     */
    TrainingStep(WorkerTask task) {
        boolean parallel = task.side() == WorkerTask.Side.OURS;
        Workload workload = task.workload();
        Engine.getInstance().setRandomSeed(SEED);
        manager = NDManager.newBaseManager(Device.cpu());
        data = data(workload);
        int classes = workload.network().isLayer() ? workload.dim() : workload.units();
        labels = manager.randomInteger(0, classes, new Shape(workload.batch()), DataType.INT64);
        model = Model.newInstance("bench");
        model.setBlock(Networks.create(workload, task.head(), task.precision()));
        DefaultTrainingConfig config =
                new DefaultTrainingConfig(Networks.loss(workload, parallel))
                        .optDevices(new Device[] {Device.cpu()})
                        .optOptimizer(task.optimizer().create(RATE));
        trainer =
                parallel
                        ? new ParallelTrainer(model, config, ranks(task))
                        : model.newTrainer(config);
        trainer.initialize(data.getShape());
    }

    private NDArray data(Workload workload) {
        if (workload.network() == Workload.Network.STEP) {
            // 0 is padding: about a third of the places of a batch
            NDArray numbers =
                    manager.randomInteger(
                            -Networks.tableRows(workload) / 2,
                            Networks.tableRows(workload),
                            new Shape(workload.batch(), NGRAMS),
                            DataType.INT32);
            return numbers.maximum(0).toType(DataType.INT32, true);
        }
        Shape rows = new Shape(workload.batch(), workload.dim());
        if (workload.network() == Workload.Network.TRANSFORMER) {
            rows = new Shape(workload.batch(), workload.tokens(), workload.dim());
        }
        return manager.randomNormal(rows);
    }

    private static ParallelConfig ranks(WorkerTask task) {
        return ParallelConfig.builder()
                .setMode(
                        task.workload().network() == Workload.Network.STEP
                                ? ParallelMode.MIXED
                                : ParallelMode.TENSOR)
                .setRanks(task.ranks())
                .optThreadsPerRank(task.threads())
                .build();
    }

    /**
     * {@inheritDoc}
     *
     * @return the seconds
     */
    @Override
    public double[] step() {
        long begin = System.nanoTime();
        try (NDManager scope = manager.newSubManager();
                GradientCollector collector = trainer.newGradientCollector()) {
            NDList input = new NDList(data.duplicate());
            input.attach(scope);
            NDList target = new NDList(labels);
            NDList output = trainer.forward(input, target);
            output.attach(scope);
            NDArray loss = trainer.getLoss().evaluate(target, output);
            loss.attach(scope);
            collector.backward(loss);
        }
        trainer.step();
        return new double[] {(System.nanoTime() - begin) / 1e9};
    }

    /** {@inheritDoc} */
    @Override
    public void close() {
        trainer.close();
        model.close();
        manager.close();
    }
}
