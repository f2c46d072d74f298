/**
 * Makes an existing network tensor parallel: a plan says by name which of its blocks are replaced
 * by parallel ones, and they can be taken back.
 */
@NullMarked
package io.djltp.plan;

import org.jspecify.annotations.NullMarked;
