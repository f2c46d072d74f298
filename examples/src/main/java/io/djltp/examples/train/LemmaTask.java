package io.djltp.examples.train;

import ai.djl.Model;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.dataset.Batch;
import ai.djl.training.loss.Loss;

import io.djltp.checkpoint.ResumableDataset;
import io.djltp.examples.lemma.HeldOutSplit;
import io.djltp.examples.lemma.Language;
import io.djltp.examples.lemma.LemmaCorpus;
import io.djltp.examples.lemma.LemmaDataset;
import io.djltp.examples.lemma.SavedModel;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ClassificationHead;
import io.djltp.zoo.CharNGrams;
import io.djltp.zoo.LemmaNetwork;

import java.io.IOException;
import java.io.PrintStream;
import java.util.Locale;
import java.util.Objects;
import java.util.function.BooleanSupplier;
import java.util.stream.Collectors;

/** The lemmatiser: inflected word form in, lemma out, each lemma a class. */
final class LemmaTask implements TrainingTask {

    private static final int EVALUATION_BATCH = 256;

    private final TrainOptions options;
    private final PrintStream out;
    private final HeldOutSplit split;
    private final CharNGrams nGrams;
    private final Model model = Model.newInstance(SavedModel.NAME);

    LemmaTask(TrainOptions options, PrintStream out) throws IOException {
        this.options = options;
        this.out = out;
        out.printf(
                "Reading the %s dictionar%s ...%n",
                options.languages.stream()
                        .map(Language::displayName)
                        .collect(Collectors.joining(", ")),
                options.languages.size() == 1 ? "y" : "ies");
        LemmaCorpus corpus = LemmaCorpus.read(options.languages);
        out.printf(
                Locale.ROOT,
                "%,d pairs of word and lemma, %,d lemmas to choose from%n",
                corpus.size(),
                corpus.classes());
        split = HeldOutSplit.of(corpus, TrainCommand.HELD_OUT, TrainCommand.SPLIT_SEED);
        nGrams = new CharNGrams(TrainCommand.tableRows(corpus.classes()), TrainCommand.N_GRAMS);
        ClassificationHead head = options.head(corpus.classes()).build();
        LemmaNetwork.initializeHead(head);
        model.setBlock(LemmaNetwork.create(nGrams.rows(), options.dim, head));
    }

    @Override
    public int classes() {
        return split.corpus().classes();
    }

    @Override
    public long batches() {
        return split.trainingSize() / options.batch;
    }

    @Override
    public String rowName() {
        return "words";
    }

    @Override
    public RunMemory memory() {
        return new RunMemory(
                options,
                classes(),
                nGrams.rows(),
                TrainCommand.N_GRAMS,
                60L * split.corpus().size());
    }

    @Override
    public Model model() {
        return model;
    }

    @Override
    public Shape[] inputs() {
        return new Shape[] {new Shape(options.batch, nGrams.limit())};
    }

    @Override
    public Loss loss() {
        return new VocabParallelCrossEntropyLoss();
    }

    @Override
    public ResumableDataset training(BooleanSupplier over) {
        return LemmaDataset.training(split, nGrams, options.batch, options.seed, over);
    }

    @Override
    public Batch heldOut(NDManager manager) {
        return LemmaDataset.heldOut(split, nGrams, options.batch)
                .getData(manager)
                .iterator()
                .next();
    }

    @Override
    public void evaluate(RunReport report, double seconds) throws IOException {
        int words = Math.min(Objects.requireNonNull(options.heldOut), split.size());
        LemmaDataset heldOut = LemmaDataset.heldOut(split, nGrams, EVALUATION_BATCH);
        HeldOutEvaluation evaluation = new HeldOutEvaluation(model, split, heldOut, words);
        evaluation.printTable(out);
        report.printSteps(out, options.batch, seconds, "words");
        double top1 = evaluation.accuracy(1);
        double top5 = evaluation.accuracy(5);
        out.printf(Locale.ROOT, "%,d held-out words: top-1 %.3f, top-5 %.3f%n", words, top1, top5);
        report.put("languages", options.languageList());
        report.put("top1", top1); // the share of words whose best lemma is right
        report.put("top5", top5); // with a right lemma among the five best
    }

    @Override
    public void save() throws IOException {
        SavedModel.save(options.out(), model, split.corpus().lexicon(), nGrams, options.dim);
    }

    @Override
    public String command() {
        return options.predictCommand("WORD...");
    }

    @Override
    public void close() {
        model.close();
    }
}
