package io.djltp.examples.embed;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertTrue;

import io.djltp.testing.Refusals;

import org.testng.annotations.Test;

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.List;

/** Which texts are close to each other. */
public class SimilaritiesTest {

    private static EmbeddedText at(double degrees) {
        double angle = Math.toRadians(degrees);
        EmbeddedText text = new EmbeddedText("" + degrees);
        text.vector = new float[] {(float) Math.cos(angle), (float) Math.sin(angle)};
        return text;
    }

    private static String print(List<EmbeddedText> texts) {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        EmbeddedText.printCosines(texts, new PrintStream(bytes, true));
        return bytes.toString();
    }

    @Test
    public void cosinesAreThoseOfTheAngles() {
        assertEquals(at(0).cosine(at(60)), 0.5, 1e-6);
        assertEquals(at(60).cosine(at(150)), 0, 1e-6);
        assertEquals(at(0).cosine(at(150)), -Math.sqrt(0.75), 1e-6);
    }

    @Test
    public void fewTextsAreATableAndManyAListOfTheClosest() {
        assertEquals(print(List.of(at(0))), "");
        assertTrue(print(List.of(at(0), at(60))).contains("  0.500"), "the table");
        List<EmbeddedText> many = new ArrayList<>();
        for (int i = 0; i < 12; i++) {
            many.add(at(i * i)); // each is closest to the one before
        }
        String text = print(many);
        Refusals.assertContains(
                text, String.format(" 12    11  0.934"), String.format("  1     2  1.000"));
    }
}
