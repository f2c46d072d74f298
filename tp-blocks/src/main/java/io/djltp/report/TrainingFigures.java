package io.djltp.report;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.DataType;
import ai.djl.training.Trainer;
import ai.djl.training.TrainingResult;
import ai.djl.training.evaluator.Evaluator;
import ai.djl.training.listener.EvaluatorTrainingListener;
import ai.djl.training.listener.TrainingListenerAdapter;

import io.djltp.optimizer.LossScale;
import io.djltp.training.ParallelTrainer;

import java.util.List;
import java.util.Map;

/**
 * A listener that takes the figures of a training as they come: of each step the loss and the
 * speed, of each epoch what the evaluators have found. In a job of several processes the process of
 * rank 0 alone takes them.
 */
public abstract class TrainingFigures extends TrainingListenerAdapter implements AutoCloseable {

    static final String LOSS = "loss";
    static final String EVALUATION = "evaluation";
    static final String SPEED = "throughput";
    static final String SCALE = "loss scale";
    static final String SKIPPED = "steps left out";

    private long step;
    private long last; // when the last step ended, or the clock was started again
    private int epochs; // that DJL had counted at the last batch
    private boolean withinEpoch; // a batch has come since the last epoch
    private boolean validated; // a batch of a validation set has
    private boolean early;
    private boolean diverged; // a loss that is not a number was seen

    /** Creates a listener. */
    TrainingFigures() {}

    /** Takes a figure. */
    abstract void accept(String chart, String name, String unit, long step, double value);

    /** Is told that a step has ended, which took so long; NaN where that is not known. */
    abstract void endStep(Trainer trainer, double seconds);

    /** Is told that a stretch has ended which is no training, and that the next step begins. */
    abstract void begin(Trainer trainer);

    /** Returns the number of steps so far. */
    long getStep() {
        return step;
    }

    /** Returns whether the last epoch is not whole, or the training is said to have ended early. */
    boolean isEarly() {
        return early || withinEpoch;
    }

    /**
     * Notes that the training ends before it was to: a loop that notifies no listeners was stopped,
     * or has failed. To be called before {@link #close()}.
     */
    public void endEarly() {
        early = true;
    }

    /**
     * Goes on with a training that was resumed from a checkpoint.
     *
     * @param losses the losses of the steps that were done before, maybe none
     */
    public void resume(List<Float> losses) {
        step = losses.size();
    }

    /**
     * Adds a figure of the caller's own, at the last step.
     *
     * @param trainer the trainer
     * @param name its name
     * @param value its value
     */
    public void add(Trainer trainer, String name, double value) {
        if (isFirst(trainer)) {
            accept(EVALUATION, name, "", step, value);
        }
    }

    /**
     * Notes that a training step has ended, in a loop that notifies no listeners.
     *
     * @param trainer the trainer
     * @param loss the loss of the step
     * @param rows the rows of the batch over all ranks
     */
    public void addStep(Trainer trainer, double loss, long rows) {
        if (!isFirst(trainer)) {
            return;
        }
        long now = System.nanoTime();
        double seconds = step == 0 || last == 0 ? Double.NaN : (now - last) / 1e9;
        step++;
        diverged |= Double.isNaN(loss);
        accept(LOSS, "training", "", step, loss);
        if (seconds > 0) {
            accept(SPEED, "rows", "rows/s", step, rows / seconds);
        }
        if (trainer instanceof ParallelTrainer parallel) {
            addLossScale(parallel.getState().getLossScale());
        }
        endStep(trainer, seconds);
        last = System.nanoTime();
    }

    private void addLossScale(LossScale lossScale) {
        if (lossScale.isUsed()) {
            accept(SCALE, SCALE, "", step, lossScale.get());
            accept(SKIPPED, SKIPPED, "", step, lossScale.getState().skippedSteps());
        }
    }

    /**
     * Starts the clock of the next step, after something that is no training: an evaluation that a
     * listener makes, for example, which comes after this one.
     *
     * @param trainer the trainer
     */
    public void restartClock(Trainer trainer) {
        if (isFirst(trainer)) {
            begin(trainer);
            last = System.nanoTime();
        }
    }

    private static boolean isFirst(Trainer trainer) {
        return !(trainer instanceof ParallelTrainer parallel)
                || parallel.getRanks().getContext(0).getRank() == 0;
    }

    /** {@inheritDoc} */
    @Override
    public void onTrainingBatch(Trainer trainer, BatchData batchData) {
        if (!isFirst(trainer)) {
            return;
        }
        double sum = 0;
        long rows = 0;
        Map<Device, NDList> labels = batchData.getLabels();
        for (Map.Entry<Device, NDList> part : labels.entrySet()) {
            NDList predictions = batchData.getPredictions().get(part.getKey());
            NDArray loss = trainer.getLoss().evaluate(part.getValue(), predictions);
            sum += loss.toType(DataType.FLOAT32, false).getFloat();
            rows += part.getValue().head().getShape().get(0);
        }
        if (step == 0 && trainer instanceof ParallelTrainer parallel) {
            step = parallel.getState().getStep(); // of a training that was resumed
        }
        withinEpoch = true;
        epochs = trainer.getTrainingResult().getEpoch();
        addStep(trainer, sum / labels.size(), rows);
    }

    /** {@inheritDoc} */
    @Override
    public void onValidationBatch(Trainer trainer, BatchData batchData) {
        validated = true;
        restartClock(trainer);
    }

    /** {@inheritDoc} */
    @Override
    public void onEpoch(Trainer trainer) {
        withinEpoch = false;
        Map<String, Float> evaluations = trainer.getTrainingResult().getEvaluations();
        if (!isFirst(trainer) || evaluations == null) {
            return;
        }
        evaluations.forEach(
                (name, value) -> {
                    boolean validation = name.startsWith("validate_");
                    if (validation && !validated) {
                        return; // DJL has a NaN there
                    }
                    String evaluator = name.replaceFirst("^(train|validate)_", "");
                    boolean loss = evaluator.equals(trainer.getLoss().getName());
                    // DJL's result has it a second time: beside it an accuracy is a flat line
                    boolean again = !loss && evaluator.equals(LOSS);
                    if (value != null && !again && !(loss && !validation)) {
                        accept(
                                loss ? LOSS : EVALUATION,
                                loss ? "validation" : name.replace('_', ' '),
                                "",
                                step,
                                value);
                    }
                });
        validated = false;
        restartClock(trainer);
    }

    /**
     * {@inheritDoc} A listener that comes before this one may have ended the training: its last
     * epoch, or a loss that is not a number, is taken now.
     */
    @Override
    public void onTrainingEnd(Trainer trainer) {
        TrainingResult result = trainer.getTrainingResult();
        if (isFirst(trainer) && step > 0) {
            if (withinEpoch && result.getEpoch() > epochs) {
                onEpoch(trainer);
            }
            if (!diverged && isDiverged(trainer)) {
                withinEpoch = true;
                accept(LOSS, "training", "", step + 1, Double.NaN);
            }
        }
        close();
    }

    /**
     * Returns whether the loss of the last batch was not a number. That of no batch is none either:
     * after an epoch another evaluator has to show that there was one.
     */
    private boolean isDiverged(Trainer trainer) {
        try {
            return isNaN(trainer.getLoss())
                    && (withinEpoch
                            || trainer.getEvaluators().stream().anyMatch(other -> !isNaN(other)));
        } catch (IllegalArgumentException e) {
            return false; // no listener of DJL evaluates
        }
    }

    private static boolean isNaN(Evaluator evaluator) {
        return Float.isNaN(evaluator.getAccumulator(EvaluatorTrainingListener.TRAIN_ALL));
    }

    /** Writes what there is to be written at the end. Figures that come later are none. */
    @Override
    public abstract void close();
}
