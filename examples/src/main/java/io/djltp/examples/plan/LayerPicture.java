package io.djltp.examples.plan;

import ai.djl.ndarray.types.Shape;

import io.djltp.cost.LayerCost;
import io.djltp.cost.ParameterCost;

import java.util.ArrayList;
import java.util.List;

/**
 * The matrices of a layer with their shards in colour: {@code x @ Wᵀ + b = y} of a linear layer, as
 * it is drawn where tensor parallelism is explained, and the parameters alone of any other.
 */
final class LayerPicture {

    private static final double MARGIN = 10;
    private static final double GAP = 34;
    private static final double CAPTION = 34;

    private final LayerCost layer;
    private final List<Object> parts = new ArrayList<>(); // matrices, and the signs between them

    LayerPicture(LayerCost layer) {
        this.layer = layer;
        ParameterCost weight = weight();
        if (weight == null) {
            for (ParameterCost each : layer.parameters()) {
                parts.add(matrix(shortName(each), each));
            }
        } else if (layer.equation().contains("id")) {
            addLookup(weight);
        } else {
            addProduct(weight, bias());
        }
    }

    /** Returns the matrix that the equation is about, or {@code null} if nothing is cut by it. */
    private ParameterCost weight() {
        return layer.parameters().stream()
                .filter(each -> each.isCut() && each.shape().dimension() == 2)
                .filter(each -> !layer.equation().isEmpty())
                .findFirst()
                .orElse(null);
    }

    private ParameterCost bias() {
        return layer.parameters().stream()
                .filter(each -> each.shape().dimension() == 1)
                .findFirst()
                .orElse(null);
    }

    /** Each rank has rows of the ids that it holds; the sum over the ranks has all. */
    private void addLookup(ParameterCost weight) {
        long ids = layer.input().size();
        parts.add(Matrix.whole("id", new Shape(ids)));
        parts.add("→");
        parts.add(matrix("W", weight));
        parts.add("→");
        parts.add(Matrix.whole("Σ y", new Shape(ids, weight.shape().get(1))));
    }

    private static String shortName(ParameterCost parameter) {
        return parameter.parameter().getName();
    }

    private static Matrix matrix(String name, ParameterCost parameter) {
        return new Matrix(name, parameter.shape(), parameter.getAxis(), parameter.cut());
    }

    /** Column parallel: the output is cut; row parallel: the input is, and the output is a sum. */
    private void addProduct(ParameterCost weight, ParameterCost bias) {
        Shape input = layer.input();
        long rows = input.size() / Math.max(1, input.get(input.dimension() - 1));
        Shape x = new Shape(rows, weight.shape().get(1));
        Shape y = new Shape(rows, weight.shape().get(0));
        boolean column = weight.getAxis() == 0;
        parts.add(column ? Matrix.whole("x", x) : new Matrix("x", x, 1, weight.cut()));
        parts.add("@");
        parts.add(matrix("W", weight));
        parts.add("ᵀ");
        if (bias != null) {
            parts.add("+");
            parts.add(matrix("b", bias));
        }
        parts.add("=");
        parts.add(column ? new Matrix("y", y, 1, weight.cut()) : Matrix.whole("Σ y", y));
    }

    /** Draws the picture. */
    Svg draw() {
        double tallest =
                parts.stream()
                        .filter(Matrix.class::isInstance)
                        .mapToDouble(each -> ((Matrix) each).height())
                        .max()
                        .orElse(0);
        double middle = MARGIN + tallest / 2;
        List<Svg> drawn = new ArrayList<>();
        double x = MARGIN;
        for (Object part : parts) {
            if (part instanceof Matrix matrix) {
                String caption = matrix.caption();
                double captionWidth = 6.4 * caption.length();
                double width = Math.max(matrix.width(), captionWidth);
                double centre = x + width / 2;
                drawn.addAll(
                        matrix.draw(centre - matrix.width() / 2, middle - matrix.height() / 2));
                double below = middle + matrix.height() / 2;
                drawn.add(Svg.label(centre, below + 14, caption).withClass("shape"));
                x += width + MARGIN;
            } else if (part.equals("ᵀ")) {
                drawn.add(Svg.label(x, MARGIN + 4, "ᵀ").withClass("sign"));
                x += MARGIN;
            } else {
                drawn.add(Svg.label(x + GAP / 2 - 5, middle, part.toString()).withClass("sign"));
                x += GAP - 5;
            }
        }
        double height = tallest + MARGIN + CAPTION;
        return new Svg("svg")
                .attr("viewBox", "0 0 " + Svg.number(x + MARGIN) + " " + Svg.number(height))
                .attr("width", Svg.number(x + MARGIN))
                .attr("height", Svg.number(height))
                .attr("role", "img")
                .attr("aria-label", "The matrices of " + layer.name() + " and their shards")
                .with(drawn);
    }
}
