package io.djltp.examples.lm;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertTrue;

import io.djltp.examples.lm.CharacterText.ExampleSentences;

import org.testng.annotations.Test;

import java.io.IOException;
import java.util.List;

/** The text is real English, and what is held out is not trained on. */
public class CharacterTextTest {

    @Test
    public void sentencesAreEnglish() throws IOException {
        List<String> sentences = ExampleSentences.read();
        assertTrue(sentences.size() > 10_000, "" + sentences.size());
        assertTrue(sentences.contains("The sad story made my heart ache."));
        assertTrue(sentences.contains("Why do I need help?"));
        // of a pair of a wrong and a right sentence, the right one
        assertTrue(!sentences.contains("Have you ever see a fish?"));
        assertEquals(sentences.stream().distinct().count(), sentences.size());
    }

    @Test
    public void partsOfTheText() throws IOException {
        CharacterText text = CharacterText.read();
        int all = text.training().length + text.heldOut().length;
        assertTrue(all > 500_000, "" + all);
        assertEquals((double) text.heldOut().length / all, 0.05, 0.01);
        String known = "The sad story, isn't it?";
        short[] ids = text.encode(known);
        StringBuilder decoded = new StringBuilder();
        for (short id : ids) {
            assertTrue(id >= 0 && id < text.vocabulary());
            decoded.append(text.decode(id));
        }
        assertEquals(decoded.toString(), known);
        List<String> training = sentences(text, text.training());
        assertTrue(sentences(text, text.heldOut()).stream().noneMatch(training::contains));
    }

    private static List<String> sentences(CharacterText text, short... ids) {
        StringBuilder all = new StringBuilder();
        for (short id : ids) {
            all.append(text.decode(id));
        }
        return List.of(all.toString().split("\n"));
    }
}
