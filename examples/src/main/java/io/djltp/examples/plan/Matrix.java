package io.djltp.examples.plan;

import ai.djl.ndarray.types.Shape;

import io.djltp.cut.Cut;
import io.djltp.cut.Segment;

import java.util.ArrayList;
import java.util.List;
import java.util.Locale;

/**
 * A matrix in a picture, with its shards.
 *
 * @param name its name, such as W
 * @param shape its shape over all ranks; axis 0 is drawn down, the others across
 * @param axis the axis that is cut, or -1
 * @param cut how it is cut, or {@code null}
 */
record Matrix(String name, Shape shape, int axis, Cut cut) {

    private static final double LEAST = 18;
    private static final double MOST = 172;
    private static final double LEAST_FOR_LABEL = 12;
    private static final double LETTER = 6; // the width of one, about

    /** Creates a matrix that every rank has. */
    static Matrix whole(String name, Shape shape) {
        return new Matrix(name, shape, -1, null);
    }

    private boolean isVector() {
        return shape.dimension() < 2;
    }

    private long down() {
        return shape.dimension() == 0 ? 1 : shape.get(0);
    }

    private long across() {
        return isVector() ? 1 : shape.slice(1).size();
    }

    /** Lengths are drawn by their logarithm: 64 and 120,000 have to be seen beside each other. */
    private static double length(long elements) {
        double logarithm = Math.log(Math.max(1, elements)) / Math.log(2);
        return Math.min(MOST, LEAST + 9 * logarithm);
    }

    double width() {
        return isVector() ? LEAST : length(across());
    }

    double height() {
        return length(down());
    }

    /** Returns what is written below: its shape, and with short names of matrices these. */
    String caption() {
        boolean named = shape.dimension() > 1 && name.length() < 4;
        return (named ? name + "  " : "") + Sizes.shape(shape);
    }

    /** Draws the matrix with its upper left corner at a point. */
    List<Svg> draw(double x, double y) {
        List<Svg> parts = new ArrayList<>();
        if (cut == null) {
            parts.add(
                    Svg.rectangle(x, y, width(), height())
                            .withClass("whole")
                            .titled(name + ": " + Sizes.shape(shape) + " on every rank"));
            parts.addAll(label(x + width() / 2, y + height() / 2));
            return parts;
        }
        boolean down = axis == 0;
        double whole = down ? height() : width();
        for (Segment segment : cut.getSegments()) {
            double start = whole * segment.range().start() / cut.getLength();
            double length = whole * segment.range().length() / cut.getLength();
            int count = segment.ranks().size();
            for (int i = 0; i < count; i++) { // what several ranks have is shared out across
                double thick = (down ? width() : height()) / count;
                double left = down ? x + i * thick : x + start;
                double top = down ? y + start : y + i * thick;
                double w = down ? thick : length;
                double h = down ? length : thick;
                parts.addAll(piece(segment, segment.ranks().get(i), left, top, w, h));
            }
        }
        return parts;
    }

    /** Returns the name in the middle, upright where it is too long, or nothing. */
    private List<Svg> label(double x, double y) {
        double length = LETTER * name.length();
        Svg text = Svg.label(x, y, name).withClass("in");
        if (length <= width()) {
            return List.of(text);
        }
        String turned = "rotate(-90 " + Svg.number(x) + " " + Svg.number(y) + ")";
        return length <= height() ? List.of(text.attr("transform", turned)) : List.of();
    }

    private List<Svg> piece(
            Segment segment, int rank, double left, double top, double width, double height) {
        List<Svg> parts = new ArrayList<>();
        String range =
                String.format(
                        Locale.ROOT,
                        "%s on rank %d of the axis tensor: axis %d from %,d to %,d",
                        name,
                        rank,
                        axis,
                        segment.range().start(),
                        segment.range().end());
        parts.add(
                Svg.rectangle(left, top, width, height)
                        .withClass("r" + rank % PlanPage.COLOURS)
                        .titled(range));
        if (height >= LEAST_FOR_LABEL && width >= LEAST_FOR_LABEL) {
            String text = width < 2 * LEAST ? "" + rank : name + subscript(rank);
            parts.add(Svg.label(left + width / 2, top + height / 2, text).withClass("on"));
        }
        return parts;
    }

    private static String subscript(int number) {
        StringBuilder text = new StringBuilder();
        for (char digit : Integer.toString(number).toCharArray()) {
            text.append((char) ('₀' + digit - '0'));
        }
        return text.toString();
    }
}
