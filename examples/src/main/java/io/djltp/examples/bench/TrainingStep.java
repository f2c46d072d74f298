package io.djltp.examples.bench;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.Blocks;
import ai.djl.nn.LambdaBlock;
import ai.djl.nn.ParallelBlock;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.nn.norm.LayerNorm;
import ai.djl.nn.transformer.TransformerEncoderBlock;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.loss.Loss;
import ai.djl.training.loss.SoftmaxCrossEntropyLoss;

import io.djltp.classes.ClassModel;
import io.djltp.examples.HeadKind;
import io.djltp.examples.OptimizerName;
import io.djltp.examples.bench.BenchWorker.Measured;
import io.djltp.examples.bench.WorkerProcess.WorkerTask;
import io.djltp.examples.lemma.LemmaCorpus;
import io.djltp.loss.OneVsAllLoss;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ClassificationHead;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.RowParallelLinear;
import io.djltp.plan.Plan;
import io.djltp.plan.Style;
import io.djltp.plan.TensorParallel;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.ParallelMode;
import io.djltp.torch.Precision;
import io.djltp.training.ParallelTrainer;

import org.jspecify.annotations.Nullable;

import java.util.List;
import java.util.Objects;
import java.util.function.Supplier;
import java.util.stream.IntStream;
import java.util.stream.Stream;

/**
 * The step of a training: forward pass, loss, backward pass, update; of {@link
 * Workload.Network#UPDATE} the update is measured alone. The batch is the same at every step, and
 * the same for both sides.
 */
final class TrainingStep implements Measured {

    private static final int SEED = 7;
    // hardly any: once it knows the batch by heart, gradients are denormal numbers, which take
    // longer
    private static final float RATE = 1e-5f;

    private final Model model;
    private final Trainer trainer;
    private final NDManager manager;
    private final NDArray data;
    private final NDArray labels;
    private final boolean gpu;
    private final boolean updateOnly;

    /**
     * Makes everything ready.
     *
     * @param task the task
     */
    TrainingStep(WorkerTask task) {
        boolean parallel = task.side() == WorkerTask.Side.OURS;
        Workload workload = Objects.requireNonNull(task.workload());
        Engine.getInstance().setRandomSeed(SEED);
        gpu = task.gpu();
        updateOnly = workload.network() == Workload.Network.UPDATE;
        Device[] devices = {Device.cpu()};
        if (gpu) {
            devices = IntStream.range(0, task.ranks()).mapToObj(Device::gpu).toArray(Device[]::new);
        }
        manager = NDManager.newBaseManager(devices[0]);
        data = data(workload);
        int classes = workload.outputs();
        NDArray ofRows = manager.randomInteger(0, classes, new Shape(data.size(0)), DataType.INT64);
        // DJL's loss wants a number for each class
        labels = parallel || !workload.isOneVsAll() ? ofRows : ofRows.oneHot(classes);
        model = Model.newInstance("bench");
        model.setBlock(Networks.create(workload, task.head(), task.precision()));
        OptimizerName optimizer = Objects.requireNonNull(task.optimizer());
        DefaultTrainingConfig config =
                new DefaultTrainingConfig(Networks.loss(workload, parallel))
                        .optDevices(devices)
                        .optOptimizer(optimizer.create(RATE));
        trainer =
                parallel
                        ? new ParallelTrainer(model, config, ranks(task, workload))
                        : model.newTrainer(config);
        trainer.initialize(data.getShape());
    }

    private NDArray data(Workload workload) {
        if (workload.network() == Workload.Network.STEP) {
            // 0 is padding: about a third of the places of a batch
            NDArray numbers =
                    manager.randomInteger(
                            -LemmaCorpus.tableRows(workload.units()) / 2,
                            LemmaCorpus.tableRows(workload.units()),
                            new Shape(workload.batch(), LemmaCorpus.MOST_N_GRAMS),
                            DataType.INT32);
            return numbers.maximum(0).toType(DataType.INT32, true);
        }
        Shape rows = new Shape(updateOnly ? 1 : workload.batch(), workload.dim());
        if (workload.network() == Workload.Network.TRANSFORMER) {
            rows = new Shape(workload.batch(), workload.tokens(), workload.dim());
        }
        return manager.randomNormal(rows);
    }

    private static ParallelConfig ranks(WorkerTask task, Workload workload) {
        return ParallelConfig.builder()
                .setMode(
                        workload.network() == Workload.Network.STEP
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
        if (updateOnly) {
            awaitGpu();
            begin = System.nanoTime();
        }
        trainer.step();
        awaitGpu();
        return new double[] {(System.nanoTime() - begin) / 1e9};
    }

    private void awaitGpu() {
        if (gpu) {
            labels.max().toArray(); // comes when all that was queued is done
        }
    }

    /** {@inheritDoc} */
    @Override
    public void close() {
        trainer.close();
        model.close();
        manager.close();
    }

    /** The networks that are measured, of layers of this library or of DJL's own. */
    static final class Networks {

        private Networks() {}

        private static ClassificationHead.Builder last(
                Workload workload, HeadKind head, Precision precision) {
            return head.builder(workload.units(), HeadKind.defaultShare(workload.units()), 1)
                    .optPrecision(precision)
                    .optUpdateInLoss(workload.isOneVsAll() && head != HeadKind.FULL);
        }

        /**
         * Creates a network.
         *
         * @param workload which one
         * @param head how the head is computed, or {@code null} for DJL's own layers
         * @param precision that of the products of the head or the layers, where they are not DJL's
         * @return the network
         */
        static Block create(Workload workload, @Nullable HeadKind head, Precision precision) {
            switch (workload.network()) {
                case HEAD:
                    // below any head there is something that needs the gradient of the features
                    return new SequentialBlock()
                            .add(linear(workload.dim(), false))
                            .add(
                                    head == null
                                            ? linear(workload.units(), false)
                                            : last(workload, head, precision)
                                                    .optBias(false)
                                                    .build());
                case STEP:
                    Block last =
                            head == null
                                    ? linear(workload.units(), true)
                                    : last(workload, head, precision)
                                            .optBatchShardedInput(true)
                                            .build();
                    return ClassModel.newTextBody(
                                    LemmaCorpus.tableRows(workload.units()), workload.dim())
                            .add(last);
                case UPDATE:
                    Supplier<Block> one = () -> linear(workload.units(), false);
                    return new ParallelBlock(
                            Networks::sum, Stream.generate(one).limit(workload.batch()).toList());
                case TRANSFORMER:
                    return encoder(workload, head != null, precision);
                default:
                    return layers(workload, head != null, precision);
            }
        }

        /**
         * Creates the loss of a network.
         *
         * @param workload which network
         * @param parallel whether its layers are cut
         * @return the loss
         */
        static Loss loss(Workload workload, boolean parallel) {
            // the last layer of the others gives back whole rows
            boolean cut = parallel && workload.network().hasHead();
            if (workload.isOneVsAll()) {
                return cut
                        ? OneVsAllLoss.binaryCrossEntropy()
                        : Loss.sigmoidBinaryCrossEntropyLoss();
            }
            return cut ? new VocabParallelCrossEntropyLoss() : new SoftmaxCrossEntropyLoss();
        }

        private static Block linear(int units, boolean biased) {
            return Linear.builder().setUnits(units).optBias(biased).build();
        }

        private static Block layers(Workload workload, boolean parallel, Precision precision) {
            SequentialBlock all = new SequentialBlock();
            for (int i = 0; i < Workload.BLOCKS; i++) {
                SequentialBlock two = new SequentialBlock();
                if (parallel) {
                    two.add(
                                    ColumnParallelLinear.builder()
                                            .setUnits(workload.units())
                                            .optPrecision(precision)
                                            .build())
                            .add(Activation::relu)
                            .add(
                                    RowParallelLinear.builder()
                                            .setUnits(workload.dim())
                                            .optPrecision(precision)
                                            .build());
                } else {
                    two.add(linear(workload.units(), true))
                            .add(Activation::relu)
                            .add(linear(workload.dim(), true));
                }
                all.add(new ParallelBlock(Networks::sum, List.of(two, Blocks.identityBlock())));
            }
            return all;
        }

        /** DJL's encoder, which a plan makes parallel, on something that needs its gradient. */
        private static Block encoder(Workload workload, boolean parallel, Precision precision) {
            SequentialBlock all =
                    new SequentialBlock()
                            .add(LayerNorm.builder().axis(2).build())
                            .add(
                                    new TransformerEncoderBlock(
                                            workload.dim(),
                                            workload.heads(),
                                            workload.units(),
                                            0, // masks are no arithmetic of the layer
                                            Activation::gelu))
                            .add(LambdaBlock.singleton(tokens -> tokens.mean(new int[] {1})));
            Plan plan =
                    Plan.builder()
                            .add("*Encoder*", Style.encoder())
                            .optPrecision(precision)
                            .build();
            return parallel ? TensorParallel.parallelize(all, plan) : all;
        }

        private static NDList sum(List<NDList> branches) {
            return new NDList(
                    NDArrays.add(
                            branches.stream()
                                    .map(NDList::singletonOrThrow)
                                    .toArray(NDArray[]::new)));
        }
    }
}
