package io.djltp.examples.embed;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertTrue;

import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.SequentialBlock;
import ai.djl.repository.zoo.ZooModel;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.GradientCollector;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import io.djltp.examples.lemma.Language;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ClassificationHead;
import io.djltp.rank.ParallelConfig;
import io.djltp.training.ParallelTrainer;
import io.djltp.zoo.WordPieces;

import morfologik.stemming.Dictionary;
import morfologik.stemming.DictionaryLookup;
import morfologik.stemming.WordData;

import org.testng.annotations.AfterClass;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.Test;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Random;

/**
 * The layers of the pretrained model learn which of five languages a word is of, from the
 * dictionaries of the lemmatiser, with a head that is cut over the ranks.
 */
public class FineTuningTest {

    private static final int STEPS = 30;
    private static final int BATCH = 5;
    private static final int WORDS_OF_A_LANGUAGE = STEPS * BATCH / Language.values().length / 2;
    private static final int DISTANCE = 997; // in the dictionary
    private static final int LAST_STEPS = 6;

    private final List<WordPieces.Batch> batches = new ArrayList<>();
    private final List<float[]> labels = new ArrayList<>();

    private record Word(String word, Language language) {}

    @BeforeClass
    public void readWords() throws IOException {
        List<Word> words = new ArrayList<>();
        for (Language language : Language.values()) {
            int number = 0;
            var url = Language.class.getResource("/" + language.resource());
            for (WordData entry : new DictionaryLookup(Dictionary.read(url))) {
                if (++number % DISTANCE == 0) {
                    words.add(new Word(entry.getWord().toString(), language));
                }
                if (number == DISTANCE * WORDS_OF_A_LANGUAGE) {
                    break;
                }
            }
        }
        Collections.shuffle(words, new Random(1));
        words.addAll(new ArrayList<>(words)); // two epochs
        try (WordPieces pieces = WordPieces.load()) {
            for (int i = 0; i < STEPS; i++) {
                List<Word> batch = words.subList(i * BATCH, (i + 1) * BATCH);
                batches.add(pieces.cut(batch.stream().map(Word::word).toList()));
                float[] label = new float[BATCH];
                for (int k = 0; k < BATCH; k++) {
                    label[k] = batch.get(k).language().ordinal();
                }
                labels.add(label);
            }
        }
    }

    @AfterClass
    public void forget() {
        batches.clear();
        labels.clear();
    }

    @Test(timeOut = 240_000)
    public void twoRanksLearnWhatOneLearns() throws IOException {
        float[] one = train(1);
        float[] two = train(2);
        for (int i = 0; i < STEPS; i++) {
            assertEquals(two[i], one[i], 1e-4 * one[i], "loss of step " + i);
        }
        assertEquals(one[0], Math.log(Language.values().length), 0.3);
        double last = 0;
        for (int i = STEPS - LAST_STEPS; i < STEPS; i++) {
            last += two[i] / LAST_STEPS;
        }
        assertTrue(last < 0.75 * two[0], "the loss has fallen from " + two[0] + " to " + last);
    }

    private float[] train(int ranks) throws IOException {
        try (ZooModel<NDList, NDList> pretrained = MiniLmFolder.loadNetwork();
                Model model = Model.newInstance("language of a word")) {
            Block body = pretrained.getBlock();
            body.getChildren().valueAt(0).freezeParameters(true); // half of the weights
            model.setBlock(
                    new SequentialBlock()
                            .add(body)
                            .add(
                                    ClassificationHead.builder()
                                            .setUnits(Language.values().length)
                                            .build()));
            DefaultTrainingConfig config =
                    new DefaultTrainingConfig(new VocabParallelCrossEntropyLoss())
                            .optOptimizer(
                                    Optimizer.adam()
                                            .optLearningRateTracker(Tracker.fixed(2e-4f))
                                            .build());
            ParallelConfig parallel = ParallelConfig.tensor(ranks);
            Engine.getInstance().setRandomSeed(5);
            try (ParallelTrainer trainer = new ParallelTrainer(model, config, parallel)) {
                trainer.initialize(new Shape(BATCH, 1), new Shape(BATCH, 1));
                float[] losses = new float[STEPS];
                for (int i = 0; i < STEPS; i++) {
                    losses[i] = step(trainer, i);
                }
                return losses;
            }
        }
    }

    private float step(ParallelTrainer trainer, int number) {
        try (NDManager manager = trainer.getManager().newSubManager();
                GradientCollector collector = trainer.newGradientCollector()) {
            WordPieces.Batch batch = batches.get(number);
            NDList data = new NDList(manager.create(batch.ids()), manager.create(batch.mask()));
            NDList label = new NDList(manager.create(labels.get(number)));
            NDList predictions = trainer.forward(data, label);
            var loss = trainer.getLoss().evaluate(label, predictions);
            collector.backward(loss);
            float value = loss.getFloat();
            trainer.step();
            return value;
        }
    }
}
