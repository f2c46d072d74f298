package io.djltp.examples.finetune;

import ai.djl.MalformedModelException;
import ai.djl.engine.Engine;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.dataset.Batch;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import io.djltp.checkpoint.CheckpointListener;
import io.djltp.examples.BadInputException;
import io.djltp.examples.train.RunReport;
import io.djltp.examples.train.TrainingJob;
import io.djltp.llm.LanguageModel;
import io.djltp.llm.ModelConfig;
import io.djltp.llm.tune.TuningData;
import io.djltp.llm.tune.TuningSteps;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.LoraConfig;
import io.djltp.report.TrainingReport;
import io.djltp.training.ParallelTrainer;

import org.jspecify.annotations.Nullable;

import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Spec;

import java.io.IOException;
import java.io.PrintStream;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.Callable;

/** Trains a language model on texts, pairs or chats, and saves it. */
@Command(
        name = "finetune",
        description =
                "Trains a language model of a Hugging Face folder on texts, pairs of prompt and"
                        + " completion, or chats, and saves it as such a folder, or its adapters as PEFT"
                        + " does. AdamW with betas 0.9 and 0.999 and epsilon 1e-8.",
        mixinStandardHelpOptions = true)
public final class FinetuneCommand implements Callable<Integer> {

    private static final int LINES = 20;

    @Mixin private FinetuneOptions options;
    @Spec private CommandSpec spec;
    private PrintStream out = System.out; // of the first process of a job alone
    private final RunReport report = new RunReport();

    /** Creates the command; its options are set by the command line. */
    public FinetuneCommand() {}

    /** {@inheritDoc} */
    @Override
    public Integer call() throws Exception {
        return TrainingJob.run(options, spec, this::run);
    }

    private void run(TrainingJob job) throws IOException {
        out = job.out();
        try (LanguageModel model = open()) {
            TuningData data = read(model, options.data, true);
            TuningData evaluation = null;
            Double share = options.evaluationShare;
            if (options.evaluation != null) {
                evaluation = read(model, options.evaluation, false);
            } else if (share != null) {
                TuningData all = data;
                List<TuningData> parts =
                        BadInputException.check("--eval-share: ", () -> all.split(share));
                data = parts.get(0);
                evaluation = parts.get(1);
            }
            describe(model, data, evaluation);
            train(job, model, data, evaluation);
            if (job.isFirst()) {
                if (options.rank == null) {
                    model.save(options.save, options.dataType);
                } else {
                    model.saveAdapter(options.save, options.dataType);
                }
                out.printf("%nSaved %s%n", options.save);
                report.write(options.json);
            }
        }
    }

    private LanguageModel open() {
        LanguageModel.Builder builder =
                LanguageModel.builder(options.folder).optShardedLogits(true);
        LoraConfig lora = options.lora();
        try {
            options.checkHeads(ModelConfig.read(options.folder).getHeads());
            return (lora == null ? builder : builder.optLora(lora)).load();
        } catch (IOException | IllegalArgumentException | MalformedModelException e) {
            throw new BadInputException(e.getMessage(), e);
        }
    }

    private TuningData read(LanguageModel model, Path file, boolean shuffled) {
        TuningData.Builder builder =
                TuningData.builder()
                        .setFile(file)
                        .setModel(model)
                        .optSampling(options.batch, shuffled)
                        .optPacked(options.packed)
                        .optBucketed(options.bucketed)
                        .optSeed(options.seed);
        if (options.length != null) {
            builder.optLength(options.length);
        }
        try {
            return builder.build();
        } catch (IllegalArgumentException | IOException e) {
            throw new BadInputException(e.getMessage(), e);
        }
    }

    private void describe(LanguageModel model, TuningData data, @Nullable TuningData evaluation) {
        report.put("model_type", model.getConfig().getModelType());
        report.put("ranks", options.ranks());
        report.put("mesh", options.meshName()); // null without --mesh
        report.put("data", data.getCounts());
        report.put("lora_rank", options.rank);
        describe("to train on", data.getCounts());
        if (evaluation != null) {
            report.put("evaluation_data", evaluation.getCounts());
            describe("for evaluations", evaluation.getCounts());
        }
    }

    private void describe(String what, TuningData.Counts counts) {
        out.printf(
                Locale.ROOT,
                "%,d texts %s: %,d tokens in %,d rows, %,d with loss; %,d split, %,d cut, %,d left"
                        + " out%n",
                counts.texts(),
                what,
                counts.tokens(),
                counts.rows(),
                counts.labels(),
                counts.split(),
                counts.cut(),
                counts.leftOut());
    }

    private void train(
            TrainingJob job, LanguageModel model, TuningData data, @Nullable TuningData evaluation)
            throws IOException {
        long ofEpoch = (data.getBatches() + options.accumulate - 1) / options.accumulate;
        int steps = options.steps(ofEpoch);
        Tracker rate = number -> options.rate(number, steps);
        DefaultTrainingConfig config =
                new DefaultTrainingConfig(new VocabParallelCrossEntropyLoss())
                        .optOptimizer(
                                Optimizer.adamW()
                                        .optLearningRateTracker(rate)
                                        .optWeightDecays(options.weightDecay)
                                        .build());
        TrainingReport page =
                options.report("tp finetune")
                        .optFact("model", options.folder.toString())
                        .optFact("rows a step", "" + options.batch * options.accumulate)
                        .optFact("ranks", options.describeRanks())
                        .build();
        CheckpointListener checkpoints =
                options.listener(spec, report, () -> report.loss.size() == steps);
        if (checkpoints != null) {
            config.addTrainingListeners(checkpoints);
        }
        Engine.getInstance().setRandomSeed(options.seed);
        try (page;
                ParallelTrainer trainer =
                        job.trainer(model.getModel(), config, options.config(job.get()).build())) {
            BadInputException.check(
                    "",
                    () -> {
                        trainer.initialize(new Shape(options.batch, 1));
                        return trainer;
                    });
            job.resume(checkpoints, options, trainer);
            try {
                train(trainer, data, evaluation, steps, ofEpoch, checkpoints, page);
            } catch (RuntimeException e) {
                page.endEarly();
                throw e;
            }
        }
    }

    private void train(
            ParallelTrainer trainer,
            TuningData data,
            @Nullable TuningData evaluation,
            int steps,
            long ofEpoch,
            @Nullable CheckpointListener checkpoints,
            TrainingReport page) {
        double tokens = (double) data.getCounts().tokens() / ofEpoch; // of a step
        report.begin();
        page.resume(report.loss);
        evaluate(trainer, evaluation, page);
        while (report.loss.size() < steps) {
            long epoch = report.loss.size() / ofEpoch;
            long first = report.loss.size() % ofEpoch * options.accumulate;
            Iterator<Batch> batches =
                    data.getData(trainer.getManager(), null, epoch, first).iterator();
            while (batches.hasNext() && report.loss.size() < steps) {
                List<Batch> some = new ArrayList<>();
                while (batches.hasNext() && some.size() < options.accumulate) {
                    some.add(batches.next());
                }
                float loss = TuningSteps.step(trainer, some);
                report.loss.add(loss);
                if (!Float.isFinite(loss)) { // nothing is saved
                    int step = report.loss.size();
                    String why =
                            step > 1
                                    ? "use a smaller --lr"
                                    : "the weights in %s are not finite, or too large. Copy or train the model again"
                                            .formatted(options.folder);
                    throw new BadInputException("The loss of step %d is %s: %s", step, loss, why);
                }
                page.addStep(trainer, loss, (long) options.batch * some.size());
                print(steps, tokens);
                if (checkpoints != null) {
                    checkpoints.endStep();
                }
            }
            evaluate(trainer, evaluation, page);
        }
        report.put("steps", steps);
        report.put("seconds", report.seconds());
        report.put("tokens_per_second", report.loss.size() * tokens / report.seconds());
    }

    private void print(int steps, double tokens) {
        int step = report.loss.size();
        if (step == 1 || step % Math.max(1, steps / LINES) == 0) {
            out.printf(
                    Locale.ROOT,
                    "step %4d of %d, loss %.4f, %,.0f tokens/s%n",
                    step,
                    steps,
                    report.loss.get(step - 1),
                    step * tokens / report.seconds());
        }
    }

    private void evaluate(
            ParallelTrainer trainer, @Nullable TuningData evaluation, TrainingReport page) {
        if (evaluation == null) {
            return;
        }
        long begin = System.nanoTime();
        double loss =
                TuningSteps.evaluate(trainer, evaluation.getData(trainer.getManager(), null, 0, 0));
        out.printf(
                Locale.ROOT,
                "after step %d: evaluation loss %.4f, perplexity %.2f%n",
                report.loss.size(),
                loss,
                Math.exp(loss));
        page.add(trainer, "evaluation loss", loss);
        page.restartClock(trainer);
        report.put("evaluation_loss", loss); // the last one is that of the trained model
        report.put("perplexity", Math.exp(loss));
        report.skip(System.nanoTime() - begin);
    }
}
