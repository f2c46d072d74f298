/**
 * Makes an existing network tensor parallel: a plan says by name which of its blocks are replaced
 * by parallel ones, and they can be taken back.
 */
package io.djltp.plan;
