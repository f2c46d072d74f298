package io.djltp.examples.report;

import ai.djl.training.Trainer;

import io.djltp.report.TensorBoardListener;
import io.djltp.report.TrainingFigures;
import io.djltp.report.TrainingReport;

import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** The page and the file of events of a run, if they were asked for. */
public final class RunReports implements AutoCloseable {

    private final List<TrainingFigures> all = new ArrayList<>();
    private boolean finished;

    RunReports(Path page, Path events, String title, Map<String, String> facts) {
        if (page != null) {
            TrainingReport.Builder builder = TrainingReport.builder().setFile(page).optTitle(title);
            facts.forEach(builder::optFact);
            all.add(builder.build());
        }
        if (events != null) {
            all.add(new TensorBoardListener(events));
        }
    }

    /**
     * Goes on after a checkpoint.
     *
     * @param losses the losses of the steps that were done before, maybe none
     */
    public void resume(List<Float> losses) {
        all.forEach(figures -> figures.resume(losses));
    }

    /**
     * Adds a step. (As listeners they would each read its loss again.)
     *
     * @param trainer the trainer
     * @param loss the loss
     * @param rows the rows of the batch
     */
    public void addStep(Trainer trainer, double loss, long rows) {
        all.forEach(figures -> figures.addStep(trainer, loss, rows));
    }

    /**
     * Adds the result of an evaluation, after which the clock of the next step is started.
     *
     * @param trainer the trainer
     * @param results what was found, by name, maybe nothing
     */
    public void addEvaluation(Trainer trainer, Map<String, Double> results) {
        for (TrainingFigures figures : all) {
            results.forEach((name, value) -> figures.add(trainer, name, value));
            figures.restartClock(trainer);
        }
    }

    /** Notes that the run has come to its end. */
    public void finish() {
        finished = true;
    }

    /** Writes the page of a run that has ended: early, unless it was said to have finished. */
    @Override
    public void close() {
        if (!finished) {
            all.forEach(TrainingFigures::endEarly);
        }
        all.forEach(TrainingFigures::close);
    }
}
