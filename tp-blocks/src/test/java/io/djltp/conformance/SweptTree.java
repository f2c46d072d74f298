package io.djltp.conformance;

import ai.djl.nn.Block;
import ai.djl.nn.SequentialBlock;
import ai.djl.training.loss.Loss;

import io.djltp.conformance.SweptPart.Kind;
import io.djltp.conformance.SweptPart.Layout;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.VocabParallelEmbedding;
import io.djltp.testing.HalfSquareLoss;

import java.util.ArrayList;
import java.util.List;
import java.util.stream.Stream;

/**
 * A random network: numbers or ids, parts of random kinds, some of them with connections around
 * them or beside each other, and a last layer with its loss.
 *
 * @param tokens the tokens of a row, or 0
 * @param features the features of the input, where it is not of ids
 * @param table the embedding of ids, or {@code null}
 * @param parts what lies in between
 * @param end the last layer
 */
record SweptTree(int tokens, long features, SweptTable table, List<SweptPart> parts, SweptEnd end) {

    private static final List<Kind> ALL = List.of(SweptLayers::draw, SweptMlp::draw);
    private static final List<Kind> SEQUENCES =
            List.of(SweptAttention::draw, SweptTransformer::draw);

    /** Draws a network, in MIXED mode or not. */
    static SweptTree draw(Draws draws, boolean mixed) {
        boolean cutTokens = !mixed && draws.tokens() >= draws.ranks() && draws.coin();
        SweptTable table =
                draws.tokens() > 0 && draws.coin()
                        ? SweptTable.draw(draws, cutTokens && draws.coin())
                        : null;
        List<SweptPart> parts = new ArrayList<>();
        if (table == null) {
            parts.add(SweptPlain.draw(draws, draws.between(4, 7))); // shows the input's gradient
        }
        long width = table == null ? parts.get(0).outputs() : table.features();
        if (cutTokens && (table == null || !table.tokensCut())) {
            parts.add(new SweptBorder(width, true));
        }
        Layout layout = mixed ? Layout.ROWS_CUT : cutTokens ? Layout.TOKENS_CUT : Layout.WHOLE;
        width = addParts(draws, layout, parts, width);
        if (cutTokens) {
            parts.add(new SweptBorder(width, false));
        }
        boolean classes = draws.coin();
        if (mixed && !(classes && draws.coin())) {
            parts.add(SweptLayers.draw(draws, layout, Layout.WHOLE));
            layout = Layout.WHOLE;
            addParts(draws, layout, parts, parts.get(parts.size() - 1).outputs());
        }
        boolean rowsCut = layout == Layout.ROWS_CUT;
        return new SweptTree(
                draws.tokens(),
                draws.between(2, 6),
                table,
                parts,
                SweptEnd.draw(draws, classes, table, rowsCut));
    }

    private static long addParts(Draws draws, Layout layout, List<SweptPart> parts, long inputs) {
        long width = inputs;
        for (int i = 1 + draws.between(0, 2) / 2; i > 0; i--) {
            SweptPart part = part(draws, layout, width);
            if (draws.between(0, 5) == 0) {
                part = SweptJoin.concatenated(List.of(part, part(draws, layout, width)));
            } else if (part.outputs() == width && draws.coin()) {
                part = SweptJoin.residual(part);
            }
            parts.add(part);
            width = part.outputs();
        }
        return width;
    }

    private static SweptPart part(Draws draws, Layout layout, long inputs) {
        List<Kind> kinds = new ArrayList<>(ALL);
        kinds.add(SweptPlain::draw);
        if (layout != Layout.TOKENS_CUT) {
            kinds.add(SweptMixture::draw);
        }
        if (layout == Layout.WHOLE) {
            kinds.add(SweptHeads::draw);
        }
        if (layout != Layout.ROWS_CUT && draws.tokens() > 0 && inputs > 3) { // for the norms
            kinds.addAll(SEQUENCES);
        }
        return draws.of(kinds).draw(draws, layout, inputs);
    }

    /** Returns whether a router computes in float32 whatever the type of the network. */
    boolean isRouted() {
        return parts.stream()
                .flatMap(
                        part ->
                                part instanceof SweptJoin join
                                        ? join.branches().stream()
                                        : Stream.of(part))
                .anyMatch(SweptMixture.class::isInstance);
    }

    /** Creates the network for DJL's trainer, or for ranks. */
    Block create(boolean cut) {
        SequentialBlock block = new SequentialBlock();
        VocabParallelEmbedding embedding = table == null ? null : table.create();
        if (embedding != null) {
            block.add(embedding);
        }
        parts.forEach(part -> block.add(part.create(cut)));
        return block.add(end.create(cut, embedding));
    }

    /** Creates its loss, a mean over rows and tokens, and of numbers over features. */
    Loss createLoss() {
        return end.classes() ? new VocabParallelCrossEntropyLoss() : new HalfSquareLoss();
    }
}
