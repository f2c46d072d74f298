package io.djltp.training;

import ai.djl.Model;
import ai.djl.engine.EngineException;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.TrainingConfig;
import ai.djl.util.NativeResource;

import io.djltp.collective.CollectiveCounts;
import io.djltp.internal.optimizer.LearningRates;
import io.djltp.internal.optimizer.OptimizerSettings;
import io.djltp.internal.optimizer.OptimizerState;
import io.djltp.internal.parameters.DriftCheck;
import io.djltp.internal.parameters.ParallelParameters;
import io.djltp.internal.parameters.RankParameterStore;
import io.djltp.internal.rank.RankPool;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.HostReads;
import io.djltp.internal.torch.JavaMemory;
import io.djltp.internal.torch.RandomDraws;
import io.djltp.internal.torch.TensorView;
import io.djltp.rank.ParallelConfig;

import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.nio.file.Path;

/**
 * A {@link Trainer} whose step is computed by several ranks. It drops into {@code EasyTrain.fit}
 * and into training loops of the user's own:
 *
 * <pre>{@code
 * ParallelConfig ranks =
 *         ParallelConfig.builder().setMode(ParallelMode.TENSOR).setRanks(4).build();
 * try (Trainer trainer = new ParallelTrainer(model, trainingConfig, ranks)) {
 *     trainer.initialize(new Shape(batchSize, features));
 *     EasyTrain.fit(trainer, epochs, trainingSet, validationSet);
 * }
 * model.save(path, "model"); // plain DJL parameters
 * }</pre>
 *
 * <p>DJL sees one device and the whole batch. Every call fans out to the ranks and waits for all of
 * them; each rank computes its loss and its gradients in its own thread, and updates its shards and
 * replicas with optimizer state of its own. A training step has the result of the same step of
 * DJL's trainer on one device, whatever the mode and the number of ranks.
 *
 * <p>Listeners, metrics, evaluators and losses are DJL's; logits that are cut over the ranks need
 * {@link io.djltp.loss.VocabParallelCrossEntropyLoss} and {@link
 * io.djltp.loss.VocabParallelAccuracy}. Optimizers are SGD with and without momentum, Adam, AdamW,
 * Adagrad, which DJL has but not on PyTorch, and {@link io.djltp.optimizer.RowwiseAdagrad}: they
 * are read for their settings and learning rates, and the trainer begins with state of its own.
 * Parameters that were frozen stay frozen.
 *
 * <p>One thread at a time may call it, such as one that holds a lock from forward to step. A call
 * while another thread is in {@code initialize}, {@code forward}, {@code evaluate}, {@code
 * backward}, {@code step} or {@code save} of this trainer is an {@link IllegalStateException};
 * {@link #close()} ends what is running.
 *
 * <p>While the trainer is open, the model's parameters that are cut hold no values, and a predictor
 * of the model throws; {@link #save} and {@code model.save} gather them, and {@link #close()} puts
 * the trained weights into the model.
 */
@SuppressWarnings("try") // a call is begun by being open
public class ParallelTrainer extends Trainer {

    private static final Logger logger = LoggerFactory.getLogger(ParallelTrainer.class);

    private final ParallelConfig parallelConfig;
    private final TrainingSteps steps;
    private final ParallelForward forwardPass;
    private final RankPool ranks;
    private final ParallelParameters parameters;
    private final ProcessAgreement agreement;
    private final DriftCheck driftCheck;
    private final TrainedModel trained;
    private final TrainerState state;

    /**
     * Creates a trainer and starts its ranks.
     *
     * @param model the model to train; its block describes the whole network
     * @param trainingConfig DJL's training configuration; its GPUs are those of the ranks if {@code
     *     parallelConfig} names no devices, see {@link ParallelConfig.Builder#optDevices}
     * @param parallelConfig the ranks
     * @throws UnsupportedOperationException if the optimizer is none of {@code Sgd}, {@code Adam},
     *     {@code AdamW}, {@code Adagrad} and {@link io.djltp.optimizer.RowwiseAdagrad}
     * @throws IllegalStateException if another open {@code ParallelTrainer} trains the model
     * @throws IllegalArgumentException if there are too few GPUs for the ranks
     * @throws io.djltp.job.JobFailedException if the processes of a job have different settings
     */
    public ParallelTrainer(
            Model model, TrainingConfig trainingConfig, ParallelConfig parallelConfig) {
        this(parallelConfig.onDevices(trainingConfig.getDevices()), model, trainingConfig);
    }

    @SuppressWarnings("this-escape") // of a subclass, only getManager() is called: that is DJL's
    private ParallelTrainer(
            ParallelConfig parallelConfig, Model model, TrainingConfig trainingConfig) {
        super(
                ProcessAgreement.check(model, trainingConfig, parallelConfig),
                new ParallelTrainingConfig(trainingConfig, parallelConfig.getDevices().get(0)));
        this.parallelConfig = parallelConfig;
        OptimizerSettings optimizer = OptimizerSettings.of(trainingConfig.getOptimizer());
        ranks = new RankPool(parallelConfig);
        try {
            parameters =
                    new ParallelParameters(
                            model.getBlock(), model.getNDManager(), getManager(), ranks);
            steps = new TrainingSteps(ranks, parameters, optimizer, parallelConfig);
            driftCheck = new DriftCheck(ranks, parameters);
            NDManager manager = getManager();
            trained =
                    new TrainedModel(
                            model, manager, parallelConfig, ranks, parameters, driftCheck, steps);
            agreement = new ProcessAgreement(model, parallelConfig, ranks, parameters, steps);
            forwardPass =
                    new ParallelForward(
                            model.getBlock(),
                            trainingConfig.getLossFunction(),
                            parameters,
                            ranks,
                            agreement,
                            parallelConfig);
            state =
                    new TrainerState(
                            ranks,
                            parameters,
                            parallelConfig,
                            optimizer,
                            steps,
                            trained,
                            agreement);
        } catch (RuntimeException | Error e) {
            ranks.close(); // nobody else has them
            getManager().close();
            throw e;
        }
    }

    /**
     * {@inheritDoc}
     *
     * <p>The values are those that DJL's trainer would give the unsharded model with the same seed,
     * bit for bit. A parameter that has values, as after {@code model.load}, keeps them.
     *
     * @param shapes the shapes of the inputs of the whole batch
     * @throws IllegalArgumentException if a parameter cannot be cut over the ranks
     * @throws io.djltp.rank.RankFailedException if the processes of a job have different networks
     */
    @Override
    public void initialize(Shape... shapes) {
        try (TrainingSteps.OneCaller.Call call = steps.begin("initialize")) {
            trained.checkOpen();
            RankZero.seed(ranks, getManager(), parallelConfig.isRandomCheck());
            agreement.prepare(shapes);
            parameters.handOut();
            trained.begin();
        }
    }

    /** {@inheritDoc} */
    @Override
    public GradientCollector newGradientCollector() {
        return new ParallelGradientCollector(steps, agreement, trained);
    }

    /** {@inheritDoc} */
    @Override
    public NDList forward(NDList input) {
        return forward(input, null, true);
    }

    /** {@inheritDoc} The ranks compute their loss in the same go. */
    @Override
    public NDList forward(NDList data, NDList labels) {
        return forward(data, labels, true);
    }

    /** {@inheritDoc} */
    @Override
    public NDList evaluate(NDList input) {
        return forward(input, null, false);
    }

    private NDList forward(NDList data, @Nullable NDList labels, boolean training) {
        try (TrainingSteps.OneCaller.Call call = steps.begin(training ? "forward" : "evaluate")) {
            long begin = System.nanoTime();
            trained.checkOpen();
            BatchPart.check(parallelConfig, data);
            if (!trained.isInitialized()) {
                initialize(data.getShapes());
            }
            if (training) {
                steps.beginEvent();
            }
            trained.beginForward(training);
            NDManager manager = data.head().getManager().newSubManager();
            ParallelOutput output = forwardPass.run(manager, data, labels, training);
            output.setModelCheck(trained::checkOpen);
            if (training) {
                steps.getPasses().add(output);
                addMetric("forward", begin);
            }
            return output;
        }
    }

    /**
     * Updates all parameters once: sums the gradients of data-parallel parameters over the ranks,
     * and lets every rank update its shards and replicas. With {@link
     * ParallelConfig.Builder#optLossScaling} no parameter is, if a gradient is not finite.
     *
     * @throws IllegalStateException if there are no gradients
     * @throws ArithmeticException if no scale of the loss makes the gradients finite
     */
    @Override
    public void step() {
        try (TrainingSteps.OneCaller.Call call = steps.begin("step")) {
            long begin = System.nanoTime();
            trained.checkOpen();
            agreement.sayFrozen();
            steps.update(trained::beginChange);
            trained.endStep();
            if (parallelConfig.isDriftCheckDue(steps.count())) {
                driftCheck.run(steps.count());
            }
            steps.endEvent();
            addMetric("step", begin);
            steps.getLossScale().addTo(getMetrics());
        }
    }

    /**
     * Returns the model. Its {@code save} is {@link #save}, which listeners such as {@code
     * SaveModelTrainingListener} call.
     *
     * @return the model
     */
    @Override
    public Model getModel() {
        return trained == null
                ? super.getModel()
                : trained.asSaved(); // asked for by DJL's constructor
    }

    /**
     * Saves the model as it is after the last step, in DJL's format. A file that is there is
     * replaced when the new one is complete, and left alone if it cannot be completed. In a job of
     * several processes all of them call this, and that of rank 0 writes the file. A parameter of
     * more than 2 GiB is for {@code io.djltp.exchange.WeightExport}.
     *
     * @param folder the folder
     * @param name the name of the model, or {@code null} for its own
     * @throws IOException if the file cannot be written, or DJL's format not hold a parameter
     * @throws IllegalStateException if another thread is in a call of this trainer; in a job of
     *     several processes, if it is called between a forward pass and its step
     * @throws io.djltp.rank.RankFailedException if another process does not call it too
     */
    public void save(Path folder, @Nullable String name) throws IOException {
        trained.save(folder, name);
    }

    /** {@return the ranks, to run something on all of them} */
    public RankPool getRanks() {
        return ranks;
    }

    /**
     * Returns rank 0's value of what processes may see differently, as the time. All call it.
     *
     * @param value this process's value
     * @return that of the process of rank 0
     */
    public double fromRankZero(double value) {
        return RankZero.valueOf(ranks, getManager(), value);
    }

    /**
     * Returns a rank's parameters. To be used by the rank, or while no step is running.
     *
     * @param rank the place of the rank among those of this process
     * @return the rank's store
     */
    public RankParameterStore getParameterStore(int rank) {
        return parameters.getStores().get(rank);
    }

    /**
     * Returns what the optimizer keeps of a rank's parameters, to be listed, read, set and freed.
     * To be used by the rank, or while no step is running. Who sets it sets the counts of {@link
     * #getLearningRates()} too.
     *
     * @param rank the place of the rank among those of this process
     * @return the rank's state
     */
    public OptimizerState getOptimizerState(int rank) {
        return steps.getOptimizerState(rank);
    }

    /**
     * {@return the learning rates, with the number of updates of each parameter; to be used while
     * no step is running} The counts are the same in all processes.
     */
    public LearningRates getLearningRates() {
        return steps.getLearningRates();
    }

    /** {@return everything that the next step depends on, for checkpoints} */
    public TrainerState getState() {
        return state;
    }

    /**
     * {@return the norm of all gradients of the last step, over all ranks and before it was
     * limited; NaN without {@link ParallelConfig.Builder#optGradientClipNorm}}
     */
    public double getGradientNorm() {
        return steps.getGradientNorm();
    }

    /** {@return a snapshot of how many collective operations rank 0 has taken part in} */
    public CollectiveCounts getCollectiveCounts() {
        return ranks.getContext(0).getCounts();
    }

    /** Lets the weights be lost with the ranks: they are in a file. */
    void dropWeights() {
        trained.drop();
    }

    /**
     * {@inheritDoc}
     *
     * <p>The model then holds the trained weights, whole. Weights of a job that failed are handed
     * back as the ranks left them, as are those of a call of another thread, which this ends. If
     * more than one thing goes wrong, the first exception is thrown, and has the others as
     * {@linkplain Throwable#getSuppressed() suppressed} ones.
     */
    @Override
    public void close() {
        if (trained.isClosed()) {
            return;
        }
        if (steps.isCalledElsewhere()) {
            ranks.close(); // ends the call, which may hang, instead of waiting for it
        }
        try (TrainingSteps.OneCaller.Call end = this::free) {
            trained.close(); // before the listeners: one of them may save the model
        }
    }

    private void free() {
        if (ranks.isStopped()) { // else a rank still computes with what would be freed
            steps.close();
            super.close();
            logger.debug("The parallel trainer of {} is closed", getModel().getName());
        }
    }

    /** Runs the backward passes of all ranks. */
    @SuppressWarnings("try") // a call is begun by being open
    private static final class ParallelGradientCollector implements GradientCollector {

        private final TrainingSteps steps;
        private final ProcessAgreement agreement;
        private final TrainedModel trained;
        private final Autograd.GradMode mode;
        private final JavaMemory memory; // of what is computed from losses
        private boolean closed;

        ParallelGradientCollector(
                TrainingSteps steps, ProcessAgreement agreement, TrainedModel trained) {
            this.steps = steps;
            this.agreement = agreement;
            this.trained = trained;
            try (TrainingSteps.OneCaller.Call call = steps.begin("newGradientCollector")) {
                steps.getPasses().setCollecting(true);
            }
            mode = Autograd.gradMode(true);
            memory = JavaMemory.keep();
        }

        /**
         * {@inheritDoc}
         *
         * @param target a loss of {@code trainer.getLoss()}, or a scalar computed from such losses
         */
        @Override
        public void backward(NDArray target) {
            try (TrainingSteps.OneCaller.Call call =
                    steps.begin("newGradientCollector().backward")) {
                differentiate(target);
            }
        }

        private void differentiate(NDArray target) {
            trained.checkOpen();
            steps.checkTrained();
            agreement.sayFrozen();
            if (((NativeResource<?>) target).isReleased()) {
                throw new IllegalStateException(
                        "What is to be differentiated was closed: a loss is closed with the manager of"
                                + " the inputs. Go backward before it is closed");
            }
            float scale = steps.getLossScale().get(); // 1 if no loss is scaled
            try (NDArray gradient = target.onesLike()) {
                Autograd.backward(target, scale == 1 ? gradient : gradient.muli(scale));
            } catch (EngineException e) {
                throw new IllegalArgumentException(
                        "Only a loss of trainer.getLoss().evaluate(labels, predictions), or what is"
                                + " computed from it, can be differentiated, of predictions that"
                                + " trainer.forward(...) has returned, and if it depends on a parameter"
                                + " that is trained. The predictions themselves are values, no part of"
                                + " a graph; and so is a loss that was made of labels alone, or of what"
                                + " leaves the graph, such as stopGradient(), argMax() and, in DJL,"
                                + " toType(...)",
                        e);
            }
            steps.backward(steps.getPasses().findReached());
        }

        /** {@inheritDoc} */
        @Override
        public void zeroGradients() {
            trained.checkOpen();
            steps.zeroGradients();
        }

        /** {@inheritDoc} */
        @Override
        public void close() {
            if (closed) {
                return;
            }
            closed = true;
            steps.getPasses().setCollecting(false);
            memory.close();
            mode.close();
        }
    }

    /** What rank 0 decides for all, because the processes could see it differently. */
    private static final class RankZero {

        private RankZero() {}

        /** Returns the value of the process of rank 0. All processes call it. */
        static double valueOf(RankPool ranks, NDManager manager, double value) {
            if (!ranks.isDistributed()) {
                return value;
            }
            return ranks.run(
                            context -> {
                                try (NDManager scope = manager.newSubManager(context.getDevice());
                                        NDArray agreed = scope.create(value)) {
                                    context.getWorld().setIssuer("ParallelTrainer.fromRankZero");
                                    context.getWorld().broadcast(TensorView.of(agreed), 0).await();
                                    return HostReads.number(agreed);
                                }
                            })
                    .get(0);
        }

        /** Lets the random numbers of all ranks follow from libtorch's generator on rank 0. */
        static void seed(RankPool ranks, NDManager manager, boolean randomCheck) {
            // 53 bits, which a double carries; before the values of parameters are drawn
            double seed = valueOf(ranks, manager, RandomDraws.fingerprint() >>> 11);
            for (int i = 0; i < ranks.size(); i++) {
                ranks.getContext(i).getRandom().begin((long) seed, randomCheck);
            }
        }
    }
}
