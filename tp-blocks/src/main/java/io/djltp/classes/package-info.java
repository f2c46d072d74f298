/** Trains, evaluates and asks classifiers with many classes, from files of examples. */
@NullMarked
package io.djltp.classes;

import org.jspecify.annotations.NullMarked;
