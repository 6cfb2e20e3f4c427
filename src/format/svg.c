/* svg.c - a line chart in one self-contained SVG file: title, axes with round ticks, grid, legend; and bars on rows.
 *
 * The frame is 880 x 480 units. A value v of an axis [low, high] lies at from + (v - low) / (high - low) (to - from).
 * Ticks stand at multiples of 1, 2 or 5 times a power of ten, and the axis ends at ticks, so that the curve never
 * touches the frame by accident.
 */
#include "format/format.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 880, HEIGHT = 480, LEFT = 76, RIGHT = 24, TOP = 60, BOTTOM = 58 };

typedef struct axis {
    double low, high, step;
    double from, to; /* in the picture */
} axis;

static const char *const colors[] = {"#2563eb", "#dc2626", "#059669", "#d97706",
                                     "#7c3aed", "#0891b2", "#db2777", "#4b5563"};

static bool is_point(const clv_series *series, size_t i)
{
    return isfinite(series->x[i]) && isfinite(series->y[i]);
}

/* The smallest of 1, 2, 5 times a power of ten that cuts the span into at most `most` steps. */
static double round_step(double span, int most)
{
    const double raw = span / most, power = pow(10, floor(log10(raw))), digit = raw / power;
    return power * (digit <= 1 ? 1 : digit <= 2 ? 2 : digit <= 5 ? 5 : 10);
}

static axis axis_over(double low, double high, int most, bool to_ticks)
{
    if (low > high) { /* no point at all */
        low = 0;
        high = 1;
    }
    if (high - low <= 1e-12 * fmax(fabs(low), fabs(high))) {
        const double room = low == 0 ? 1 : fabs(low) * 0.1;
        low -= room;
        high += room;
    }
    axis a = {.low = low, .high = high, .step = round_step(high - low, most)};
    if (to_ticks) {
        a.low = floor(low / a.step + 1e-9) * a.step;
        a.high = ceil(high / a.step - 1e-9) * a.step;
    }
    return a;
}

static double place(const axis *a, double value)
{
    return a->from + (value - a->low) / (a->high - a->low) * (a->to - a->from);
}

static void find_axes(const clv_series *series, size_t count, axis *x, axis *y)
{
    double low[2] = {INFINITY, INFINITY}, high[2] = {-INFINITY, -INFINITY};
    for (size_t s = 0; s < count; s++) {
        for (size_t i = 0; i < series[s].count; i++) {
            if (!is_point(&series[s], i))
                continue;
            low[0] = fmin(low[0], series[s].x[i]);
            high[0] = fmax(high[0], series[s].x[i]);
            low[1] = fmin(low[1], series[s].y[i]);
            high[1] = fmax(high[1], series[s].y[i]);
        }
    }
    *x = axis_over(low[0], high[0], 10, false);
    *y = axis_over(low[1], high[1], 8, true);
    x->from = LEFT;
    x->to = WIDTH - RIGHT;
    y->from = HEIGHT - BOTTOM;
    y->to = TOP;
}

static void add_escaped(clv_text *out, const char *text)
{
    for (; *text != 0; text++) {
        const char *name = *text == '<' ? "&lt;" : *text == '>' ? "&gt;" : *text == '&' ? "&amp;" : NULL;
        if (name != NULL)
            clv_text_add(out, name, strlen(name));
        else if ((unsigned char)*text >= ' ') /* XML has no other control characters that matter here */
            clv_text_add(out, text, 1);
    }
}

/* `how`: the attributes of the element. */
static void add_label(clv_text *out, const char *how, const char *text)
{
    clv_text_printf(out, "<text %s>", how);
    add_escaped(out, text);
    clv_text_printf(out, "</text>\n");
}

/* As people write it: no exponent up to ten million, thousands apart by a thin space. */
static void number_label(char *out, size_t size, double value, double step)
{
    const int decimals = step >= 1 ? 0 : (int)ceil(-log10(step) - 1e-9);
    if (fabs(value) < step * 1e-6)
        value = 0;
    if (fabs(value) >= 1e7 || decimals > 6)
        snprintf(out, size, "%.4g", value);
    else if (fabs(value) >= 10000 && decimals == 0)
        snprintf(out, size, "%ld\xe2\x80\x89%03ld", (long)value / 1000, labs((long)value) % 1000);
    else
        snprintf(out, size, "%.*f", decimals, value);
}

static void add_ticks(clv_text *out, const axis *a, bool vertical)
{
    const double first = ceil(a->low / a->step - 1e-9);
    for (double k = first; k * a->step <= a->high + 1e-9 * a->step; k++) {
        const double at = place(a, k * a->step);
        char label[32], how[96];
        number_label(label, sizeof label, k * a->step, a->step);
        if (vertical) {
            clv_text_printf(out, "<path class=\"grid\" d=\"M%d %.1fH%d\"/>\n", LEFT, at, WIDTH - RIGHT);
            snprintf(how, sizeof how, "x=\"%d\" y=\"%.1f\" text-anchor=\"end\"", LEFT - 10, at + 4);
        } else {
            clv_text_printf(out, "<path class=\"axis\" d=\"M%.1f %dv5\"/>\n", at, HEIGHT - BOTTOM);
            snprintf(how, sizeof how, "x=\"%.1f\" y=\"%d\" text-anchor=\"middle\"", at, HEIGHT - BOTTOM + 20);
        }
        add_label(out, how, label);
    }
}

static void add_curve(clv_text *out, const clv_series *series, const char *color, const axis *x, const axis *y)
{
    double last_x = 0, last_y = 0;
    size_t drawn = 0;
    clv_text_printf(out, "<polyline class=\"curve\" stroke=\"%s\" points=\"", color);
    for (size_t i = 0; i < series->count; i++) {
        if (!is_point(series, i))
            continue;
        const double at_x = place(x, series->x[i]), at_y = place(y, series->y[i]);
        if (drawn > 0 && fabs(at_x - last_x) < 0.2 && fabs(at_y - last_y) < 0.2 && i + 1 < series->count)
            continue; /* nobody sees it, and long runs have many */
        clv_text_printf(out, "%s%.1f,%.1f", drawn > 0 ? " " : "", at_x, at_y);
        last_x = at_x;
        last_y = at_y;
        drawn++;
    }
    clv_text_printf(out, "\"/>\n");
    if (drawn == 1)
        clv_text_printf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n", last_x, last_y, color);
}

/* The names stand in a row under the title. */
static void add_legend(clv_text *out, const clv_series *series, size_t count)
{
    double at = LEFT;
    for (size_t s = 0; s < count; s++) {
        char how[64];
        clv_text_printf(out, "<path d=\"M%.0f 45h18\" stroke=\"%s\" stroke-width=\"3\" stroke-linecap=\"round\"/>\n",
                        at, colors[s % CLV_COUNT(colors)]);
        snprintf(how, sizeof how, "x=\"%.0f\" y=\"49\"", at + 25);
        add_label(out, how, series[s].name);
        at += 25 + 7.2 * (double)strlen(series[s].name) + 22;
    }
}

static void add_head(clv_text *out, int width, int height)
{
    clv_text_printf(out,
                    "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" "
                    "font-family=\"system-ui, 'Segoe UI', Helvetica, Arial, sans-serif\" font-size=\"12.5\" "
                    "fill=\"#374151\">\n",
                    width, height, width, height);
    clv_text_printf(out, "<style>.grid{stroke:#e5e7eb}.axis{stroke:#9ca3af}"
                         ".curve{fill:none;stroke-width:1.8;stroke-linejoin:round;stroke-linecap:round}</style>\n");
    clv_text_printf(out, "<rect width=\"%d\" height=\"%d\" fill=\"#ffffff\"/>\n", width, height);
}

static void add_title(clv_text *out, const char *title)
{
    char how[128];
    snprintf(how, sizeof how, "x=\"%d\" y=\"28\" font-size=\"17\" font-weight=\"600\" fill=\"#111827\"", LEFT);
    add_label(out, how, title);
}

static void add_frame(clv_text *out, const char *title, const char *x_label, const char *y_label)
{
    char how[128];
    add_head(out, WIDTH, HEIGHT);
    add_title(out, title);
    snprintf(how, sizeof how, "x=\"%d\" y=\"%d\" text-anchor=\"middle\"", (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14);
    add_label(out, how, x_label);
    const int middle = (TOP + HEIGHT - BOTTOM) / 2;
    snprintf(how, sizeof how, "x=\"20\" y=\"%d\" text-anchor=\"middle\" transform=\"rotate(-90 20 %d)\"", middle,
             middle);
    add_label(out, how, y_label);
}

clv_status clv_svg_chart(const char *path, const char *title, const char *x_label, const char *y_label,
                         const clv_series *series, size_t count)
{
    axis x, y;
    find_axes(series, count, &x, &y);
    clv_text out = {0};
    add_frame(&out, title, x_label, y_label);
    add_ticks(&out, &y, true);
    add_ticks(&out, &x, false);
    clv_text_printf(&out, "<path class=\"axis\" d=\"M%d %dH%d\"/>\n", LEFT, HEIGHT - BOTTOM, WIDTH - RIGHT);
    for (size_t s = 0; s < count; s++)
        add_curve(&out, &series[s], colors[s % CLV_COUNT(colors)], &x, &y);
    add_legend(&out, series, count);
    clv_text_printf(&out, "</svg>\n");
    const clv_status st = clv_file_write_atomic(path, out.data, out.length);
    clv_text_free(&out);
    return st;
}

/* ---- bars on rows ------------------------------------------------------------------------------------------------ */

enum { UNIT = 18, ROW = 26, BAR_TOP = 48 };

static void add_bar(clv_text *out, const clv_bar *bar)
{
    char how[160];
    const double x = LEFT + UNIT * bar->from, width = UNIT * (bar->to - bar->from);
    const int y = BAR_TOP + ROW * bar->row;
    clv_text_printf(out,
                    "<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\" fill=\"%s\" stroke=\"#374151\" "
                    "stroke-width=\"0.6\"/>\n",
                    x, y, width, ROW - 4, bar->color);
    snprintf(how, sizeof how, "x=\"%.1f\" y=\"%d\" text-anchor=\"middle\" font-size=\"11\" fill=\"#111827\"",
             x + width / 2, y + ROW / 2 + 2);
    add_label(out, how, bar->label);
}

clv_status clv_svg_bars(const char *path, const char *title, const char *name, const clv_bar *bars, size_t count)
{
    int rows = 0;
    double last = 0;
    for (size_t i = 0; i < count; i++) {
        rows = CLV_MAX(rows, bars[i].row + 1);
        last = fmax(last, bars[i].to);
    }
    clv_text out = {0};
    add_head(&out, CLV_MAX(LEFT + (int)ceil(UNIT * last) + RIGHT, WIDTH), BAR_TOP + ROW * rows + 12);
    add_title(&out, title);
    for (int i = 0; i < rows; i++) {
        char how[64], label[64];
        snprintf(how, sizeof how, "x=\"%d\" y=\"%d\" text-anchor=\"end\"", LEFT - 10, BAR_TOP + ROW * i + ROW / 2 + 2);
        snprintf(label, sizeof label, "%.40s %d", name, i);
        add_label(&out, how, label);
    }
    for (size_t i = 0; i < count; i++)
        add_bar(&out, &bars[i]);
    clv_text_printf(&out, "</svg>\n");
    const clv_status st = clv_file_write_atomic(path, out.data, out.length);
    clv_text_free(&out);
    return st;
}
